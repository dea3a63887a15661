//! The same random operations on the mount and on ext4: every result, and every tree, must agree.
//!
//! Not compared, as file systems may differ: block counts, sizes of folders, the order of names in
//! a folder, where holes begin and end, and offsets beyond what ext4 holds.

mod execute;
mod generate;
mod op;

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use self::execute::Side;
use self::generate::Generator;
use self::op::{Op, Step};
use crate::harness::context::Context;
use crate::harness::mount::{Mount, Spec};
use crate::harness::report::Case;
use crate::harness::tree::{Rules, expect_equal, now_seconds, scan};

pub(super) const CASES: &[Case] = &[Case {
    name: "random",
    run: random_operations_agree,
}];

/// Seeds that a run takes, if time allows.
const SEEDS: u64 = 12;
/// Operations for each seed.
const OPS: u64 = 3000;
/// Operations between two comparisons of the whole trees.
const CHECKPOINT: u64 = 250;
/// Operations that a failure shows.
const HISTORY: usize = 25;

/// Random operations give the same results, errors and trees as on ext4, also after a remount.
fn random_operations_agree(context: &Context) -> Result<()> {
    let mut tested = Mount::create(context, &Spec::new("test", "2G"))?;
    let mut reference = Mount::reference(context, &Spec::new("refr", "2G"))?;
    for seed in context.seed_range(SEEDS) {
        if context.time_left() < Duration::from_secs(60) {
            println!("      stopped before seed {seed}: no time left");
            break;
        }
        run_seed(context, seed, &mut tested, &mut reference)
            .with_context(|| format!("replay with: --seed {seed}"))?;
    }
    tested.unmount()?;
    tested.fsck()?;
    reference.unmount()
}

fn run_seed(
    context: &Context,
    seed: u64,
    tested: &mut Mount<'_>,
    reference: &mut Mount<'_>,
) -> Result<()> {
    let roots = [new_root(tested, seed)?, new_root(reference, seed)?];
    let now = now_seconds(&roots[0])?;
    // Explicit times lie before 2020, the rest must be of this run, up to coarse clocks.
    let rules = Rules::all(now - 5);
    let mut sides = roots.clone().map(|root| Side::new(root, now - 5));
    let mut generator = Generator::new(seed);
    let mut history: VecDeque<String> = VecDeque::new();
    let count = context.ops.unwrap_or(OPS);
    let mut successes = 0;
    for index in 0..count {
        let step = generator.step();
        if history.len() == HISTORY {
            history.pop_front();
        }
        let [result, expected] = sides.each_mut().map(|side| side.run(&step));
        let (result, expected) = (result?, expected?);
        history.push_back(format!("{index} {step:?}\n      = {expected}"));
        if result != expected {
            let earlier = Vec::from(history.clone()).join("\n    ");
            bail!("operation {index}\n    {earlier}\n      but {result}");
        }
        successes += u64::from(result.starts_with("ok"));
        if (index + 1) % context.every.unwrap_or(CHECKPOINT) == 0 {
            compare(&roots, rules).with_context(|| {
                let history = Vec::from(history.clone()).join("\n    ");
                format!("trees after operation {index}\n  history:\n    {history}")
            })?;
        }
    }
    for side in sides {
        side.close();
    }
    println!("      seed {seed}: {count} operations, {successes} of them without an error");
    compare(&roots, rules).context("trees at the end")?;
    tested.remount()?;
    compare(&roots, rules).context("trees after a remount")?;
    for root in &roots {
        let outer = root.parent().expect("made in a folder");
        fs::remove_dir_all(outer).with_context(|| outer.display().to_string())?;
    }
    Ok(())
}

/// Creates a new folder that all users may write to.
fn new_root(mount: &Mount<'_>, seed: u64) -> Result<PathBuf> {
    // A path may lead out of the root by one step: what it finds there must be the same.
    let root = mount.dir().join(format!("seed{seed}/tree"));
    fs::create_dir_all(&root)?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777))?;
    Ok(root)
}

fn compare(roots: &[PathBuf; 2], rules: Rules) -> Result<()> {
    expect_equal(&scan(&roots[0], rules)?, &scan(&roots[1], rules)?)
}

/// What a case shows of a step.
impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(user) = self.user {
            write!(f, "as {}: ", user.uid)?;
        }
        write!(f, "{:?}", self.op)
    }
}

/// Whether an operation names a path whose attributes are compared afterwards.
fn paths_of(op: &Op) -> Vec<&str> {
    op.paths()
        .into_iter()
        .filter(|path| !path.is_empty())
        .collect()
}
