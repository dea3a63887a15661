//! `install-tools`: the programs that the mounted tests need, in pinned versions.
//!
//! Debian packages go to the system, Rust programs to `target/tools/bin`. Everything that is there
//! already is left alone, so a second run takes no time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::check::cargo;
use crate::steps::succeeds;

/// The header of RocksDB's C interface.
pub(crate) const ROCKSDB_HEADER: &str = "/usr/include/rocksdb/c.h";
/// A Debian package and a file by which it is known to be there.
const PACKAGES: [(&str, &str); 17] = [
    ("acl", "/usr/bin/setfacl"),
    ("attr", "/usr/bin/setfattr"),
    ("e2fsprogs", "/sbin/mkfs.ext4"),
    ("file", "/usr/bin/file"),
    ("fuse3", "/usr/bin/fusermount3"),
    ("gcc", "/usr/bin/gcc"),
    ("git", "/usr/bin/git"),
    ("libacl1-dev", "/usr/include/sys/acl.h"),
    ("librocksdb-dev", ROCKSDB_HEADER),
    ("linux-source-6.1", "/usr/src/linux-source-6.1.tar.xz"),
    ("make", "/usr/bin/make"),
    ("python3-redis", "/usr/lib/python3/dist-packages/redis"),
    ("redis-tools", "/usr/bin/redis-cli"),
    ("rsync", "/usr/bin/rsync"),
    ("sqlite3", "/usr/bin/sqlite3"),
    ("util-linux", "/usr/bin/unshare"),
    ("xz-utils", "/usr/bin/xz"),
];

/// Programs of crates.io for the mounted tests, with their versions.
const PROGRAMS: [(&str, &str); 2] = [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];
/// The checker of dependencies and its version.
const CARGO_DENY: (&str, &str) = ("cargo-deny", "0.20.2");

/// Where the programs of crates.io are installed.
pub(crate) fn bin_dir(root: &Path) -> PathBuf {
    root.join("target/tools/bin")
}

/// Installs what is missing.
pub(crate) fn install(root: &Path) -> Result<()> {
    install_packages()?;
    for (program, version) in PROGRAMS {
        install_program(root, program, version)?;
    }
    Ok(())
}

/// Installs cargo-deny if it is missing, and returns its path.
pub(crate) fn cargo_deny(root: &Path) -> Result<PathBuf> {
    let (program, version) = CARGO_DENY;
    install_program(root, program, version)?;
    Ok(bin_dir(root).join(program))
}

fn install_packages() -> Result<()> {
    let missing: Vec<&str> = PACKAGES
        .into_iter()
        .filter(|(_, witness)| !Path::new(witness).exists())
        .map(|(package, _)| package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(" "));
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        succeeds(
            command
                .args(["-q", "-y"])
                .args(args)
                .env("DEBIAN_FRONTEND", "noninteractive"),
        )
    };
    ensure!(apt(&["update"])?, "apt-get update failed");
    let install = [&["install", "--no-install-recommends"], missing.as_slice()].concat();
    ensure!(
        apt(&install)?,
        "apt-get install failed: {}",
        missing.join(" ")
    );
    Ok(())
}

fn install_program(root: &Path, program: &str, version: &str) -> Result<()> {
    let tools = root.join("target/tools");
    let stamp = tools.join(format!("{program}-{version}.installed"));
    if stamp.exists() && bin_dir(root).join(program).exists() {
        return Ok(());
    }
    println!("installing {program} {version}");
    let mut command = cargo(root);
    command.args([
        "install",
        "--quiet",
        "--locked",
        "--force",
        "--version",
        version,
    ]);
    // One target folder for all of them, apart from the workspace's own.
    command
        .arg("--root")
        .arg(&tools)
        .env("CARGO_TARGET_DIR", tools.join("build"));
    ensure!(
        succeeds(command.arg(program))?,
        "cargo install {program} failed"
    );
    fs::write(stamp, "")?;
    Ok(())
}
