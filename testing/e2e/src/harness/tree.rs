//! Whole trees as plain data, to compare one with another.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

/// Files above this size are compared by their data ranges only.
const DENSE_BYTES_MAX: u64 = 64 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// What is compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Times from here on, in seconds, count as "now"; earlier ones must be equal to the
    /// nanosecond.
    pub(crate) now_from: Option<i64>,
    /// Access times too.
    pub(crate) access_times: bool,
    /// Link counts of folders too.
    pub(crate) dir_links: bool,
    /// Extended attributes too.
    pub(crate) xattrs: bool,
    /// Owner and group too.
    pub(crate) owners: bool,
}

impl Rules {
    /// Everything, with times from `now_from` on taken as equal.
    pub(crate) fn all(now_from: i64) -> Self {
        Self {
            now_from: Some(now_from),
            access_times: true,
            dir_links: true,
            xattrs: true,
            owners: true,
        }
    }

    /// What a faithful copy keeps.
    pub(crate) fn copy() -> Self {
        Self {
            owners: true,
            xattrs: true,
            ..Self::default()
        }
    }
}

/// A tree: entries by path relative to its root.
pub(crate) type Tree = BTreeMap<PathBuf, String>;

/// A mode without set-group-id on a file that its group may not execute. The bit means nothing
/// there, and the kernel does not tell a FUSE file system whether a write is to take it.
pub(crate) fn meaning_of(mode: u32) -> u32 {
    let is_file = mode & 0o170_000 == 0o100_000;
    if is_file && mode & 0o010 == 0 {
        mode & !0o2000
    } else {
        mode
    }
}

/// When `path` last changed, which for a new one is now.
pub(crate) fn now_seconds(path: &Path) -> Result<i64> {
    Ok(fs::metadata(path)?.ctime())
}

/// Reads the tree under `root`.
pub(crate) fn scan(root: &Path, rules: Rules) -> Result<Tree> {
    let mut scan = Scan {
        root,
        rules,
        tree: Tree::new(),
        links: HashMap::new(),
    };
    scan.entry(Path::new(""))?;
    Ok(scan.tree)
}

/// Fails with the first differences between two trees.
pub(crate) fn expect_equal(left: &Tree, right: &Tree) -> Result<()> {
    let mut differences = Vec::new();
    for (path, entry) in left {
        match right.get(path) {
            None => differences.push(format!("only left: {} {entry}", path.display())),
            Some(other) if other != entry => {
                differences.push(format!(
                    "{}:\n  left  {entry}\n  right {other}",
                    path.display()
                ));
            }
            Some(_) => {}
        }
    }
    let missing = right.iter().filter(|(path, _)| !left.contains_key(*path));
    differences
        .extend(missing.map(|(path, entry)| format!("only right: {} {entry}", path.display())));
    if differences.is_empty() {
        return Ok(());
    }
    let count = differences.len();
    differences.truncate(10);
    bail!("{count} differences\n{}", differences.join("\n"))
}

struct Scan<'a> {
    root: &'a Path,
    rules: Rules,
    tree: Tree,
    /// First path of each inode with several links.
    links: HashMap<u64, PathBuf>,
}

impl Scan<'_> {
    fn entry(&mut self, relative: &Path) -> Result<()> {
        let path = if relative.as_os_str().is_empty() {
            self.root.to_path_buf()
        } else {
            self.root.join(relative)
        };
        let description = self
            .describe(&path, relative)
            .with_context(|| path.display().to_string())?;
        self.tree.insert(relative.to_path_buf(), description);
        if fs::symlink_metadata(&path)?.is_dir() {
            let mut names = Vec::new();
            for entry in fs::read_dir(&path).with_context(|| path.display().to_string())? {
                names.push(entry?.file_name());
            }
            names.sort();
            let count = names.len();
            names.dedup();
            if names.len() != count {
                bail!("{} lists a name twice", path.display());
            }
            for name in names {
                self.entry(&relative.join(name))?;
            }
        }
        Ok(())
    }

    fn describe(&mut self, path: &Path, relative: &Path) -> Result<String> {
        let meta = fs::symlink_metadata(path)?;
        let kind = meta.file_type();
        let mut parts = vec![format!("mode {:o}", meaning_of(meta.mode()))];
        if self.rules.owners {
            parts.push(format!("owner {}:{}", meta.uid(), meta.gid()));
        }
        if !kind.is_dir() || self.rules.dir_links {
            parts.push(format!("links {}", meta.nlink()));
        }
        parts.push(format!(
            "mtime {}",
            self.time(meta.mtime(), meta.mtime_nsec())
        ));
        if self.rules.access_times {
            parts.push(format!(
                "atime {}",
                self.time(meta.atime(), meta.atime_nsec())
            ));
        }
        if kind.is_file() {
            parts.push(format!(
                "size {} hash {:016x}",
                meta.size(),
                hash(path, meta.size())?
            ));
        } else if kind.is_symlink() {
            parts.push(format!(
                "target {:?} size {}",
                fs::read_link(path)?,
                meta.size()
            ));
        } else if kind.is_block_device() || kind.is_char_device() {
            parts.push(format!("device {:x}", meta.rdev()));
        }
        if meta.nlink() > 1 && !kind.is_dir() {
            let first = self
                .links
                .entry(meta.ino())
                .or_insert_with(|| relative.to_path_buf());
            parts.push(format!("same as {}", first.display()));
        }
        if self.rules.xattrs {
            for (name, value) in xattrs(path)? {
                parts.push(format!("{name}={}", hex(&value)));
            }
        }
        Ok(parts.join(", "))
    }

    fn time(&self, seconds: i64, nanos: i64) -> String {
        match self.rules.now_from {
            Some(now_from) if seconds >= now_from => "now".to_owned(),
            _ => format!("{seconds}.{nanos:09}"),
        }
    }
}

/// Extended attributes by name.
pub(crate) fn xattrs(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut list = vec![0_u8; 65536];
    let length = rustix::fs::llistxattr(path, &mut list).context("listxattr")?;
    let mut found = BTreeMap::new();
    for name in list[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0_u8; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value).context("getxattr")?;
        value.truncate(length);
        found.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(found)
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hash of a file's content. Zeros at the ends of data ranges do not change that of a huge file, as
/// file systems place holes differently.
fn hash(path: &Path, size: u64) -> Result<u64> {
    let mut file = File::open(path)?;
    if size > DENSE_BYTES_MAX {
        return hash_sparse(&file, size);
    }
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0_u8; CHUNK_BYTES.min(usize::try_from(size)? + 1)];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.digest()),
            length => hasher.update(&buffer[..length]),
        }
    }
}

/// Hashes position and content of every aligned 4 KiB that is not all zeros.
fn hash_sparse(file: &File, size: u64) -> Result<u64> {
    let mut sum = 0_u64;
    let mut buffer = vec![0_u8; CHUNK_BYTES];
    let mut at = 0;
    while at < size {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data / 4096 * 4096,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error).context("SEEK_DATA"),
        };
        let hole = rustix::fs::seek(file, SeekFrom::Hole(at)).context("SEEK_HOLE")?;
        while at < hole {
            let wanted = usize::try_from((hole - at).min(CHUNK_BYTES as u64))?;
            let wanted = wanted.next_multiple_of(4096).min(CHUNK_BYTES);
            let length = read_up_to(file, &mut buffer[..wanted], at)?;
            if length == 0 {
                break;
            }
            for (index, block) in buffer[..length].chunks(4096).enumerate() {
                if block.iter().any(|&byte| byte != 0) {
                    // A block that the file's end cuts counts as if zeros followed.
                    let mut whole = [0_u8; 4096];
                    whole[..block.len()].copy_from_slice(block);
                    let mut hasher = Xxh3::new();
                    hasher.update(&(at + index as u64 * 4096).to_le_bytes());
                    hasher.update(&whole);
                    sum = sum.wrapping_add(hasher.digest());
                }
            }
            at += wanted as u64;
        }
    }
    Ok(sum)
}

fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64)? {
            0 => break,
            length => done += length,
        }
    }
    Ok(done)
}

/// Names in a folder, sorted.
pub(crate) fn names(dir: &Path) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().into_vec());
    }
    names.sort();
    Ok(names)
}

/// Fails unless a file holds exactly these bytes.
pub(crate) fn expect_content(path: &Path, content: &[u8]) -> Result<()> {
    let found = fs::read(path).with_context(|| path.display().to_string())?;
    if found == content {
        return Ok(());
    }
    let differs = found.iter().zip(content).position(|(a, b)| a != b);
    let name = path.as_os_str().as_bytes();
    bail!(
        "{} has {} bytes instead of {}, first difference at {differs:?}",
        String::from_utf8_lossy(name),
        found.len(),
        content.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let left = Tree::from([
            (PathBuf::from("a"), "x".into()),
            (PathBuf::from("b"), "y".into()),
        ]);
        let right = Tree::from([
            (PathBuf::from("b"), "z".into()),
            (PathBuf::from("c"), "y".into()),
        ]);
        let error = expect_equal(&left, &right).unwrap_err().to_string();
        for part in ["3 differences", "only left: a", "b:", "only right: c"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(expect_equal(&left, &left).is_ok());
    }
}
