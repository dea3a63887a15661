//! A tree of the shape of the kernel's sources.
//!
//! Linux 6.1 has 47,000 files of 589 MB: 12.5 KB on average, and most are shorter. Here: sizes up
//! to 1 KB times a power of two that is drawn, 13 KB on average; 15 files in a directory; text of
//! words, which compresses as text does.

use crate::disk::output;
use anyhow::Result;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use stitch_base::random::Rng;

const FILES_PER_DIR: u64 = 15;
const DIRS_PER_DIR: u64 = 12;
/// Length of the shortest file.
const LEN_BYTES_MIN: u64 = 500;
/// The longest is so many times twice as long, about.
const DOUBLINGS_MAX: u32 = 7;
const WORDS: [&str; 16] = [
    "static ", "int ", "return ", "struct ", "const ", "if (", ") {\n", "}\n", "\t", "err", " = ",
    "device", "->", ";\n", "buffer", "0x1f",
];

/// The tarball of a tree of so many files, made in `folder` unless it is there.
pub(super) fn tarball(folder: &Path, files: u64) -> Result<PathBuf> {
    let path = folder.join("tree.tar");
    if path.exists() {
        return Ok(path);
    }
    let tree = folder.join("tree");
    make(&tree, files)?;
    let begun = folder.join("tree.tar.begun");
    let mut tar = Command::new("tar");
    output(tar.arg("-cf").arg(&begun).arg("-C").arg(&tree).arg("."))?;
    fs::remove_dir_all(&tree)?;
    fs::rename(&begun, &path)?;
    Ok(path)
}

fn make(tree: &Path, files: u64) -> Result<()> {
    let mut rng = Rng::new(files);
    let mut dirs: Vec<PathBuf> = Vec::new();
    for number in 0..files.div_ceil(FILES_PER_DIR) {
        let parent = match number.checked_sub(DIRS_PER_DIR) {
            None => tree,
            Some(rest) => &dirs[usize::try_from(rest / DIRS_PER_DIR)?],
        };
        let dir = parent.join(format!("subsystem{number}"));
        fs::create_dir_all(&dir)?;
        dirs.push(dir);
    }
    for number in 0..files {
        let dir = &dirs[usize::try_from(number / FILES_PER_DIR)?];
        let name = dir.join(format!("source_file_{number}.c"));
        let mut file = fs::File::create(name)?;
        file.write_all(text(&mut rng).as_bytes())?;
    }
    Ok(())
}

/// As long as a source file may be.
fn len_bytes(rng: &mut Rng) -> u64 {
    let mut doublings = 0;
    while doublings < DOUBLINGS_MAX && !rng.one_in(4) {
        doublings += 1;
    }
    let most = LEN_BYTES_MIN << (doublings + 1);
    LEN_BYTES_MIN + rng.below(most)
}

fn text(rng: &mut Rng) -> String {
    let len = usize::try_from(len_bytes(rng)).expect("files are small");
    let mut text = String::with_capacity(len + 8);
    while text.len() < len {
        let word = rng.below(WORDS.len() as u64);
        text.push_str(WORDS[usize::try_from(word).expect("few words")]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_as_long_as_those_of_the_kernel() {
        let mut rng = Rng::new(1);
        let mut lens: Vec<u64> = (0..20_000).map(|_| len_bytes(&mut rng)).collect();
        lens.sort_unstable();
        let mean = lens.iter().sum::<u64>() / 20_000;
        assert!((6_000..20_000).contains(&mean), "{mean}");
        assert!((1_500..6_000).contains(&lens[10_000]), "{}", lens[10_000]);
    }
}
