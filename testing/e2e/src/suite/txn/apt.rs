//! `apt-get install` into a small Debian tree in runs that are killed at random moments: the
//! packages are installed and configured, or nothing of them is left. No network is needed: the
//! packages are built here, and the tree is made of the host's shell.

use super::kills::{Killed, Kills};
use super::*;
use crate::harness::copies::{copy, expect_equal};

/// Kills in CI. `--seeds N` kills N times.
const KILLS: u64 = 3;
/// Files of a package.
const FILES: usize = 40;
const PACKAGES: [&str; 2] = ["stitch-base", "stitch-app"];

/// Refuses to run where Debian's tools are missing.
fn check_tools() -> Result<()> {
    for tool in ["apt-get", "dpkg", "dpkg-deb", "ldd"] {
        if output(Command::new(tool).arg("--version")).is_err() {
            return Err(Skip(format!("there is no {tool} here")).into());
        }
    }
    Ok(())
}

fn shell(script: &str) -> Result<String> {
    let (code, said) = ended(Command::new("bash").args(["-euc", script]))?;
    ensure!(code == 0, "{script}: {code} {said}");
    Ok(said)
}

/// Builds a package and one that depends on it, each with files, a file of configuration and a
/// script that runs in the tree. Returns their archives.
fn build_packages(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut archives = Vec::new();
    for name in PACKAGES {
        let root = dir.join(name);
        let archive = dir.join(format!("{name}.deb"));
        let depends = match name {
            "stitch-app" => "Depends: stitch-base\n",
            _ => "",
        };
        fs::create_dir_all(root.join("DEBIAN"))?;
        fs::write(
            root.join("DEBIAN/control"),
            format!(
                "Package: {name}\nVersion: 1\nArchitecture: all\n{depends}\
                 Maintainer: tester <tester@example.invalid>\nDescription: files of a test\n"
            ),
        )?;
        fs::write(root.join("DEBIAN/conffiles"), format!("/etc/{name}.conf\n"))?;
        let script = format!("#!/bin/sh\nset -e\necho \"$1\" >> /opt/{name}/log\n");
        fs::write(root.join("DEBIAN/postinst"), script)?;
        shell(&format!(
            "cd {root}; chmod 755 DEBIAN/postinst; mkdir -p opt/{name} etc
             echo 1 > etc/{name}.conf; for i in $(seq {FILES}); do seq $i 99 > opt/{name}/f$i; done
             dpkg-deb --root-owner-group --build . {archive}",
            root = text(&root),
            archive = text(&archive),
        ))?;
        archives.push(archive);
    }
    Ok(archives)
}

/// Makes a tree in which packages can be installed: the shell with its libraries, and empty lists.
fn make_tree(root: &Path) -> Result<()> {
    shell(&format!(
        "mkdir {root}; cd {root}
         mkdir -p var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers var/log bin etc/apt
         mkdir -p var/lib/apt/lists/partial var/cache/apt/archives/partial tmp
         touch var/lib/dpkg/status var/lib/dpkg/available
         for file in /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*'); do
             mkdir -p .${{file%/*}}; cp -L $file .$file
         done",
        root = text(root),
    ))?;
    Ok(())
}

/// `apt-get install` of archives into the tree, whose scripts run in a chroot of it.
fn install(root: &Path, archives: &[PathBuf]) -> String {
    let root = text(root);
    let archives: Vec<String> = archives.iter().map(|archive| text(archive)).collect();
    let options = [
        "Dir::State=@/var/lib/apt",
        "Dir::State::status=@/var/lib/dpkg/status",
        "Dir::Cache=@/var/cache/apt",
        "Dir::Etc=@/etc/apt",
        "Dir::Log=@/var/log",
        "APT::Sandbox::User=root",
        "DPkg::Options::=--root=@",
        "DPkg::Options::=--log=/dev/null",
        "DPkg::Use-Pty=0",
    ];
    let options: Vec<String> = options
        .iter()
        .map(|option| format!("-o {}", option.replace('@', &root)))
        .collect();
    format!(
        "export DEBIAN_FRONTEND=noninteractive; apt-get -q -y {} install {}",
        options.join(" "),
        archives.join(" ")
    )
}

/// Expects that both packages are installed and configured, with all their files.
fn expect_installed(root: &Path, packed: &Path) -> Result<()> {
    let root_option = format!("--root={}", text(root));
    for check in ["--audit", "--verify"] {
        let (code, said) = ended(Command::new("dpkg").args([&root_option, check]))?;
        ensure!(code == 0 && said.is_empty(), "dpkg {check}: {code} {said}");
    }
    for name in PACKAGES {
        let (code, said) = ended(Command::new("dpkg").args([&root_option, "--status", name]))?;
        ensure!(
            code == 0 && said.contains("install ok installed"),
            "{code} {said}"
        );
        for index in 1..=FILES {
            let file = format!("opt/{name}/f{index}");
            let expected = fs::read(packed.join(name).join(&file))?;
            ensure!(fs::read(root.join(&file))? == expected, "{file}");
        }
        let log = fs::read_to_string(root.join(format!("opt/{name}/log")))?;
        ensure!(log == "configure\n", "{name}: {log:?}");
    }
    Ok(())
}

/// The run, or the daemon, is killed at a random moment of `apt-get install`.
pub(super) fn an_installation_is_whole_or_absent(context: &Context) -> Result<()> {
    check_tools()?;
    let mut stage = TxnStage::new(context, "txn-apt")?;
    let packed = stage.outside.clone();
    let archives = build_packages(&packed)?;
    let root = stage.top.join("root");
    make_tree(&root)?;
    let before = copy(context, &root, "txn-apt-before")?;
    let script = install(&root, &archives);
    let mut kills = Kills::measure(&stage, &script)?;
    expect_installed(&root, &packed)?;
    let (mut whole, mut absent) = (0, 0);
    for _ in 0..context.seeds.unwrap_or(KILLS) {
        if !root.join("opt").exists() {
            expect_equal(&before, &root)?;
        } else {
            run(Command::new("rm").arg("-rf").arg(&root))?;
            make_tree(&root)?;
        }
        let Killed { is_done, what } = kills.kill(&mut stage, &script)?;
        let checked = match root.join("opt").exists() {
            true => {
                whole += 1;
                expect_installed(&root, &packed)
            }
            false => {
                absent += 1;
                ensure!(!is_done, "{what}: it is not there");
                expect_equal(&before, &root).context("something is left")
            }
        };
        checked.with_context(|| what)?;
    }
    println!("      {whole} installed, {absent} absent");
    stage.end()
}
