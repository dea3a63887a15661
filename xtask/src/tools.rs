//! `install-tools`: the programs that the mounted tests need, in pinned versions.
//!
//! Debian packages go to the system, Rust programs to `target/tools/bin`. Everything that is there
//! already is left alone, so a second run takes no time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use stitch_base::clock::{Clock as _, SystemClock};

use crate::check::cargo;
use crate::steps::succeeds;

/// The header of RocksDB's C interface, which the benchmark's package brings.
const ROCKSDB_HEADER: &str = "/usr/include/rocksdb/c.h";
/// The file names of RocksDB's library that `crates/rocks` tries to load.
const ROCKSDB_LIBRARIES: [&str; 2] = ["librocksdb.so.7.8", "librocksdb.so"];
/// Directories in which the dynamic loader finds libraries, beside that of the architecture.
const LIBRARY_DIRS: [&str; 4] = ["/lib64", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
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
/// The checker of public items and its version.
const CARGO_SEMVER_CHECKS: (&str, &str) = ("cargo-semver-checks", "0.51.0");

/// The crate that has the source of `SQLite`, and its version.
const SQLITE: (&str, &str) = ("libsqlite3-sys", "0.30.1");
/// The name under which programs load `SQLite`.
const SQLITE_LIBRARY: &str = "libsqlite3.so.0";

/// Settings of the release profile by which a program is built soon; it runs for seconds.
const QUICK_BUILD: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];
/// Pauses between the attempts of a command that downloads.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];

/// Reports whether RocksDB's library is installed.
pub(crate) fn has_rocksdb() -> bool {
    let of_architecture = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let dirs = [of_architecture.as_str()].into_iter().chain(LIBRARY_DIRS);
    let mut dirs = dirs.map(Path::new);
    dirs.any(|dir| ROCKSDB_LIBRARIES.iter().any(|name| dir.join(name).exists()))
}

/// Where the programs of crates.io are installed.
pub(crate) fn bin_dir(root: &Path) -> PathBuf {
    root.join("target/tools/bin")
}

/// Where libraries are installed that some mounted tests load.
fn lib_dir(root: &Path) -> PathBuf {
    root.join("target/tools/lib")
}

/// Installs what is missing.
pub(crate) fn install(root: &Path) -> Result<()> {
    install_packages()?;
    for (program, version) in PROGRAMS {
        install_program(root, program, version)?;
    }
    install_sqlite(root)
}

/// Installs cargo-deny if it is missing, and returns its path.
pub(crate) fn cargo_deny(root: &Path) -> Result<PathBuf> {
    installed(root, CARGO_DENY)
}

/// Installs cargo-semver-checks if it is missing, and returns its path.
pub(crate) fn cargo_semver_checks(root: &Path) -> Result<PathBuf> {
    installed(root, CARGO_SEMVER_CHECKS)
}

/// Installs a program if it is missing, and returns its path.
fn installed(root: &Path, (program, version): (&str, &str)) -> Result<PathBuf> {
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
        command.args(["-q", "-y"]).args(args);
        succeeds_in_time(command.env("DEBIAN_FRONTEND", "noninteractive"), PAUSES)
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

/// Runs a command that downloads, and once more after each of `pauses` as long as it fails: the
/// network or a mirror may fail for a moment. Returns whether it succeeded at last.
fn succeeds_in_time(
    command: &mut Command,
    pauses: impl IntoIterator<Item = Duration>,
) -> Result<bool> {
    for pause in pauses {
        if succeeds(command)? {
            return Ok(true);
        }
        println!("again in {} s: {command:?}", pause.as_secs());
        SystemClock::default().sleep(pause);
    }
    succeeds(command)
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
        .env("CARGO_TARGET_DIR", tools.join("build"))
        .envs(QUICK_BUILD);
    ensure!(
        succeeds_in_time(command.arg(program), PAUSES)?,
        "cargo install {program} failed"
    );
    fs::write(stamp, "")?;
    Ok(())
}

/// Builds an `SQLite` that commits by atomic writes where a file system has them. That of the
/// system does not.
fn install_sqlite(root: &Path) -> Result<()> {
    let (package, version) = SQLITE;
    let stamp = root.join(format!("target/tools/{package}-{version}.installed"));
    let library = lib_dir(root).join(SQLITE_LIBRARY);
    if stamp.exists() && library.exists() {
        return Ok(());
    }
    println!("installing SQLite of {package} {version}");
    let source = sqlite_source(root)?;
    fs::create_dir_all(lib_dir(root))?;
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-O1", "-shared", "-fPIC"])
        .arg(format!("-Wl,-soname,{SQLITE_LIBRARY}"))
        .arg("-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE");
    compiler.arg("-o").arg(&library).arg(source);
    ensure!(
        succeeds(compiler.args(["-lpthread", "-ldl", "-lm"]))?,
        "gcc failed to build SQLite"
    );
    fs::write(stamp, "")?;
    Ok(())
}

/// Downloads the source of `SQLite`. Returns its only file.
fn sqlite_source(root: &Path) -> Result<PathBuf> {
    let (package, version) = SQLITE;
    let dir = root.join("target/tools/build/sqlite");
    fs::create_dir_all(dir.join("src"))?;
    // A package of its own: the workspace does not need it.
    let manifest = format!(
        "[package]\nname = \"sqlite-source\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
         [dependencies]\n{package} = \"={version}\"\n[workspace]\n"
    );
    fs::write(dir.join("Cargo.toml"), manifest)?;
    fs::write(dir.join("src/lib.rs"), "")?;
    let mut command = cargo(root);
    command
        .args(["vendor", "--quiet", "--manifest-path"])
        .arg(dir.join("Cargo.toml"))
        .arg(dir.join("vendor"));
    ensure!(
        succeeds_in_time(&mut command, PAUSES)?,
        "cargo vendor of {package} failed"
    );
    Ok(dir.join("vendor").join(package).join("sqlite3/sqlite3.c"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that succeeds from its third run on, which it counts by files in `dir`.
    fn third_time(dir: &Path) -> Command {
        let script = "touch \"$0/$(ls \"$0\" | wc -l)\"; test $(ls \"$0\" | wc -l) -ge 3";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(dir);
        command
    }

    #[test]
    fn a_command_that_fails_for_a_moment_is_run_again() {
        let dir = std::env::temp_dir().join(format!("xtask-again-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let no_pause = [Duration::ZERO; 2];
        let once = succeeds_in_time(&mut third_time(&dir), no_pause[1..].to_vec()).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        let twice = succeeds_in_time(&mut third_time(&dir), no_pause).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((once, twice), (false, true));
    }
}
