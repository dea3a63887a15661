//! The public exerciser `fsx`: random reads, writes, maps, holes and truncations of one file.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};
use stitch_base::thread;

use super::passthrough;
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};
use crate::harness::process::run;
use crate::harness::report::Case;
use crate::harness::views;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "random",
        run: random_data_is_kept,
    },
    Case {
        name: "large-files",
        run: random_data_of_large_files_is_kept,
    },
    Case {
        name: "passthrough",
        run: random_data_of_lent_files_is_kept,
    },
    Case {
        name: "clone",
        run: random_data_is_kept_in_a_clone,
    },
    Case {
        name: "txn",
        run: random_data_is_kept_in_a_transaction,
    },
];

/// The file grows beyond this and is cut to less again and again.
const LARGE_FILES: &str = "large_files=external:64K";

const SEEDS: u64 = 3;
const OPS: u64 = 100_000;

/// Every operation takes part; the tool's own default for most is never.
const CONFIG: &str = "\
flen = 262144
nomsyncafterwrite = UNSYNCED
[opsize]
max = 65536
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 10.0
mapwrite = 10.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 0.5
fdatasync = 0.5
posix_fallocate = 5.0
punch_hole = 5.0
sendfile = 5.0
posix_fadvise = 1.0
copy_file_range = 5.0
";

/// 100,000 operations with every kind enabled, for three seeds at once; then a check of the store.
fn random_data_is_kept(context: &Context) -> Result<()> {
    random_data(context, &Spec::new("fsx", "512M"), OPS)
}

/// The same on plain files beside the store, with fewer operations: cutting one costs the host's
/// syncs.
fn random_data_of_large_files_is_kept(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let spec = Spec::new("fsx-large", "512M").option(LARGE_FILES);
    random_data(context, &spec, OPS / 5)
}

/// The same while readers have the files open, which the kernel serves itself. Without `sendfile`:
/// from a file that is open for writing then, the kernel takes it from a cache that mappings pass
/// by.
fn random_data_of_lent_files_is_kept(context: &Context) -> Result<()> {
    let spec = passthrough::spec("fsx-lent");
    let mount = passthrough::mount_with(context, &spec)?;
    let mut readers = Vec::new();
    for seed in context.seed_range(SEEDS) {
        let path = mount.dir().join(format!("file{seed}"));
        fs::write(&path, vec![7; 100_000])?;
        readers.push(fs::File::open(path)?);
    }
    let config = CONFIG.replace("sendfile = 5.0", "sendfile = 0.0");
    random_data_on(context, mount, &config, OPS / 5, readers)
}

/// The same, with fewer operations, in a clone.
fn random_data_is_kept_in_a_clone(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("fsx-clone", "512M"))?;
    let view = views::clone(context, &mount)?;
    random_data_in(context, (&mount, &view), CONFIG, OPS / 10)?;
    mount.unmount()?;
    mount.fsck()
}

/// The same in a transaction, which is committed: mainline then has what the transaction had.
fn random_data_is_kept_in_a_transaction(context: &Context) -> Result<()> {
    context.needs_stitch()?;
    let mut mount = Mount::create(context, &Spec::new("fsx-txn", "512M"))?;
    let view = views::begin(context, &mount)?;
    random_data_in(context, (&mount, &view), CONFIG, OPS / 10)?;
    views::commit_and_compare(context, &mount)?;
    mount.unmount()?;
    mount.fsck()
}

/// Random operations on a store, for each seed; then a check of the store.
pub(super) fn random_data(context: &Context, spec: &Spec, ops: u64) -> Result<()> {
    let mount = Mount::create(context, spec)?;
    random_data_on(context, mount, CONFIG, ops, Vec::new())
}

/// Readers have the files open until all is done.
fn random_data_on(
    context: &Context,
    mut mount: Mount<'_>,
    config_text: &str,
    ops: u64,
    readers: Vec<fs::File>,
) -> Result<()> {
    random_data_in(context, (&mount, mount.dir()), config_text, ops)?;
    drop(readers);
    mount.unmount()?;
    mount.fsck()
}

/// Random operations on files in a directory of a mount.
fn random_data_in(
    context: &Context,
    (mount, dir): (&Mount<'_>, &Path),
    config_text: &str,
    ops: u64,
) -> Result<()> {
    let ops = context.ops.unwrap_or(ops).to_string();
    let start = context.elapsed();
    let mut runs = Vec::new();
    for seed in context.seed_range(SEEDS) {
        let config = context.work.join(format!("{}{seed}.toml", mount.name()));
        // With an msync after each mapped write, and without, when the kernel decides.
        fs::write(
            &config,
            config_text.replace("UNSYNCED", &(seed % 3 != 1).to_string()),
        )?;
        let mut command = Command::new(context.tools.join("fsx"));
        command
            .args(["-q", "-N", &ops, "-S", &seed.to_string(), "-f"])
            .arg(&config);
        command
            .arg("-P")
            .arg(&context.work)
            .arg(dir.join(format!("file{seed}")));
        runs.push((seed, thread::spawn("fsx", move || run(&mut command))?));
    }
    for (seed, run) in runs {
        let result = run.join().map_err(|_| anyhow!("panicked"))?;
        result.with_context(|| format!("replay with: --seed {seed}"))?;
        println!(
            "      seed {seed}: {ops} operations, {:.0?}",
            context.elapsed() - start
        );
    }
    Ok(())
}
