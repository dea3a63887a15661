//! A few files that get another length all the time: by writes, cuts, allocations, copies, and
//! renames over each other.
//!
//! A write or copy of up to one step is there as a whole or not at all. So a file has, after a
//! power cut, a length and contents that some operation gave it. Longer ones are several steps, and
//! a crash shows the beginning of one: the test of them shows that the workload would find that.

use super::ops::{FsOp, What, pick, small};
use super::tree::Tree;
use stitch_base::random::Rng;
use stitch_fs::{FallocateMode, FileKind, RenameMode};

/// Longest write or copy that is one step in the smallest store here, wherever it begins.
pub(crate) const STEP_BYTES: u64 = 100_000;
/// Where writes begin, and what files are cut to.
const SIZE_MAX: u64 = 400_000;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A next operation. Writes and copies are not longer than `longest`.
pub(super) fn generate(tree: &Tree, at: u64, longest: u64, rng: &mut Rng) -> FsOp {
    debug_assert!(longest > 0, "a write has bytes");
    let files = tree.iter();
    let files = files.filter(|(_, node)| node.attr.kind == FileKind::Regular);
    let files: Vec<&String> = files.map(|(path, _)| path).collect();
    let new = NAMES[small(rng, NAMES.len() as u64)].to_owned();
    let what = if files.len() < 2 || rng.one_in(12) {
        What::Create {
            path: new,
            perm: 0o644,
        }
    } else {
        let (path, other) = (pick(&files, rng).clone(), pick(&files, rng).clone());
        match rng.below(4) {
            0 => change_names(path, other, new, rng),
            1 | 2 => change_length(path, rng),
            _ => write(path, other, longest, rng),
        }
    };
    FsOp { at, what }
}

fn write(path: String, other: String, longest: u64, rng: &mut Rng) -> What {
    let offset = rng.below(SIZE_MAX);
    let len = 1 + rng.below(longest);
    if rng.one_in(4) {
        return What::Copy {
            source: other,
            target: path,
            offset,
            len,
        };
    }
    What::Write {
        path,
        offset,
        len: usize::try_from(len).expect("it fits memory"),
        seed: rng.next_u64(),
        append: rng.one_in(3),
    }
}

fn change_length(path: String, rng: &mut Rng) -> What {
    let keep_size = rng.one_in(2);
    let mode = match rng.below(6) {
        0 => FallocateMode::PunchHole,
        1 => FallocateMode::ZeroRange { keep_size },
        2 => FallocateMode::Allocate { keep_size },
        number => {
            let size = if number == 3 { 0 } else { rng.below(SIZE_MAX) };
            return What::Truncate { path, size };
        }
    };
    What::Fallocate {
        path,
        mode,
        offset: rng.below(SIZE_MAX),
        len: 1 + rng.below(STEP_BYTES),
    }
}

fn change_names(path: String, other: String, new: String, rng: &mut Rng) -> What {
    let (target, mode) = match rng.below(3) {
        0 => (new, RenameMode::Replace),
        1 => (other, RenameMode::Replace),
        _ => (other, RenameMode::Exchange),
    };
    match rng.below(8) {
        0 => What::Unlink {
            path,
            is_open: rng.one_in(2),
        },
        1 => What::SyncFile { path },
        2 => What::Step,
        3 => What::Reclaim,
        _ => What::Rename {
            source: path,
            target,
            mode,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::STEP_BYTES;
    use crate::crash::{self, Effort};
    use crate::systems;

    /// What goes wrong in lives of a few seeds.
    fn faults(longest: u64) -> Vec<String> {
        let system = systems::lengths(longest);
        let explore = |seed| crash::explore(&system, seed, Effort::default());
        (0..16).filter_map(|seed| explore(seed).err()).collect()
    }

    #[test]
    fn a_file_has_a_length_that_an_operation_gave_it() {
        assert_eq!(faults(STEP_BYTES), [""; 0]);
    }

    #[test]
    fn writes_of_several_steps_are_seen_in_part() {
        assert!(!faults(4 * STEP_BYTES).is_empty());
    }
}
