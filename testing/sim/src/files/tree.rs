//! All that a user can see of a file system, as one value.

use super::past::{Pages, Past};
use std::collections::BTreeMap;
use std::fmt;
use stitch_base::Ino;
use stitch_fs::{Attr, Caller, DirName, FileKind, FileSystem, FsError, FsResult, SeekFor, Taken};

/// Bytes read at once.
const PAGE: u64 = 4096;

/// One inode under one of its names.
#[derive(Clone)]
pub struct Node {
    /// Attributes; the inode number and the time of access are left out.
    pub attr: Attr,
    /// First path of the same inode.
    pub first: String,
    /// Offset and digest of each page that holds anything but zeros; of a symbolic link its target.
    pub content: Vec<(u64, u64)>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Where contents are a plain file: the pages themselves.
    pub(super) pages: Option<Pages>,
    /// In a model: what a power cut may leave of the contents, if they are a plain file.
    pub(super) past: Option<Past>,
    /// In a model: one of its names went with a removed tree. That name counts as a link until the
    /// tree is emptied, which is work that a store puts off, does in an order of its own after it
    /// was opened, and leaves where the tree cannot be read. That the links are those that there
    /// are rows of is for the store's checks.
    pub(super) has_removed_name: bool,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        let is_loose = self.has_removed_name || other.has_removed_name;
        let is_like = (self.attr_but_links(is_loose), &self.first, &self.target)
            == (other.attr_but_links(is_loose), &other.first, &other.target)
            && self.xattrs == other.xattrs;
        is_like && (self.content == other.content || self.may_be(other) || other.may_be(self))
    }
}

impl Eq for Node {}

impl Node {
    /// Attributes; if it is loose, without the number of links and when that changed.
    fn attr_but_links(&self, is_loose: bool) -> Attr {
        let mut attr = self.attr;
        if is_loose {
            (attr.nlink, attr.ctime) = (1, Default::default());
        }
        attr
    }

    /// Whether a power cut may leave what the other has of this one.
    fn may_be(&self, other: &Self) -> bool {
        let pages = other.pages.as_ref();
        let past = self.past.as_ref().zip(pages);
        past.is_some_and(|(past, pages)| past.allows(pages))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attr = &self.attr;
        write!(
            f,
            "{:?} {:o} {}:{}",
            attr.kind, attr.perm, attr.uid, attr.gid
        )?;
        write!(
            f,
            " links {} size {} rdev {}",
            attr.nlink, attr.size, attr.rdev
        )?;
        write!(f, " m{} c{} b{}", attr.mtime.0, attr.ctime.0, attr.btime.0)?;
        write!(
            f,
            " flags {:x} first {:?} pages {:?}",
            attr.iflags, self.first, self.content
        )?;
        write!(f, " target {} xattrs {:?}", self.target.len(), self.xattrs)
    }
}

/// Every path, `""` for the root.
pub type Tree = BTreeMap<String, Node>;

/// Runs `body` with the inode of a path, and forgets it afterwards.
pub(in crate::files) fn with_path<T>(
    fs: &FileSystem,
    path: &str,
    body: impl FnOnce(Ino) -> FsResult<T>,
) -> FsResult<T> {
    let mut ino = Ino::ROOT;
    let mut looked_up = Vec::new();
    let mut walk = || {
        for name in path.split('/').filter(|name| !name.is_empty()) {
            ino = fs.lookup(DirName::new(ino, name.as_bytes()))?.ino;
            looked_up.push(ino);
        }
        Ok(())
    };
    let done = walk().and_then(|()| body(ino));
    for ino in looked_up {
        fs.forget(ino, 1);
    }
    done
}

/// The number of a path's inode.
pub(in crate::files) fn ino(fs: &FileSystem, path: &str) -> FsResult<Ino> {
    with_path(fs, path, Ok)
}

/// Whether a path's contents are a plain file. A power cut may leave a small one: of the operation
/// that made it large, only that its contents left the store.
pub(super) fn is_external(fs: &FileSystem, path: &str) -> FsResult<bool> {
    with_path(fs, path, |ino| fs.is_external(ino))
}

/// Runs `body` with the parent and the last name of a path.
pub(in crate::files) fn with_name<T>(
    fs: &FileSystem,
    path: &str,
    body: impl FnOnce(DirName<'_>) -> FsResult<T>,
) -> FsResult<T> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    with_path(fs, parent, |ino| body(DirName::new(ino, name.as_bytes())))
}

/// Reads everything.
///
/// # Errors
/// What cannot be read.
pub fn read(fs: &FileSystem) -> FsResult<Tree> {
    read_below(fs, "")
}

/// Reads a directory and all below it. Paths are from the root.
pub(in crate::files) fn read_below(fs: &FileSystem, dir: &str) -> FsResult<Tree> {
    let mut tree = Tree::new();
    let mut firsts = BTreeMap::new();
    visit(fs, dir, &mut tree, &mut firsts)?;
    Ok(tree)
}

/// Returns the path of a directory below another one, if there is one. Reads names alone.
pub(in crate::files) fn path_of_dir(
    fs: &FileSystem,
    from: &str,
    dir: Ino,
) -> FsResult<Option<String>> {
    let (is_it, names) = with_path(fs, from, |ino| {
        let is_dir = fs.get_attr(ino)?.kind == FileKind::Directory;
        let names = if is_dir { list(fs, ino)? } else { Vec::new() };
        Ok((ino == dir, names))
    })?;
    if is_it {
        return Ok(Some(from.to_owned()));
    }
    for name in names {
        let found = path_of_dir(fs, &join(from, &name), dir)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// No history makes so many directories in each other.
const DEPTH_MAX: usize = 64;

fn visit(
    fs: &FileSystem,
    path: &str,
    tree: &mut Tree,
    firsts: &mut BTreeMap<Ino, String>,
) -> FsResult<()> {
    if path.matches('/').count() > DEPTH_MAX {
        let shown: String = path.chars().take(200).collect();
        return Err(FsError::Corrupt(format!(
            "{shown}...: a directory is below itself"
        )));
    }
    let (node, names) = with_path(fs, path, |ino| {
        let node = node(fs, ino, path, firsts)?;
        let is_dir = node.attr.kind == FileKind::Directory;
        let names = if is_dir { list(fs, ino)? } else { Vec::new() };
        Ok((node, names))
    })?;
    tree.insert(path.to_owned(), node);
    for name in names {
        visit(fs, &join(path, &name), tree, firsts)?;
    }
    Ok(())
}

/// `parent/name`, without a slash before names in the root.
pub(in crate::files) fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}/{name}")
    }
}

/// One inode.
pub(super) fn node(
    fs: &FileSystem,
    ino: Ino,
    path: &str,
    firsts: &mut BTreeMap<Ino, String>,
) -> FsResult<Node> {
    let mut attr = fs.get_attr(ino)?;
    let first = firsts.entry(ino).or_insert_with(|| path.to_owned()).clone();
    let content = match attr.kind {
        FileKind::Regular => content(fs, ino, attr.size)?,
        _ => Vec::new(),
    };
    let target = match attr.kind {
        FileKind::Symlink => fs.read_link(ino)?.to_vec(),
        _ => Vec::new(),
    };
    (attr.ino, attr.atime, attr.blocks) = (Ino(0), Default::default(), 0);
    Ok(Node {
        attr,
        first,
        content,
        target,
        xattrs: xattrs(fs, ino)?,
        pages: None,
        past: None,
        has_removed_name: false,
    })
}

pub(in crate::files) fn xattrs(fs: &FileSystem, ino: Ino) -> FsResult<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut xattrs = BTreeMap::new();
    let names = fs.list_xattr(&Caller::ROOT, ino)?;
    for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        xattrs.insert(
            name.to_vec(),
            fs.get_xattr(&Caller::ROOT, ino, name)?.to_vec(),
        );
    }
    Ok(xattrs)
}

/// The pages that are not all zeros, found by data and holes, so that sparse files cost little.
fn content(fs: &FileSystem, ino: Ino, size: u64) -> FsResult<Vec<(u64, u64)>> {
    let mut pages = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match fs.seek(ino, at, SeekFor::Data) {
            Ok(data) => data,
            Err(FsError::NoSeekTarget) => break,
            Err(error) => return Err(error),
        };
        let hole = fs.seek(ino, data, SeekFor::Hole)?;
        if data < at || hole <= data {
            return Err(FsError::Corrupt(format!(
                "data at {data}, hole at {hole}, asked at {at}"
            )));
        }
        let mut page = data - data % PAGE;
        while page < hole.min(size) {
            read_page(fs, ino, page, size, &mut pages)?;
            page += PAGE;
        }
        at = page;
    }
    Ok(pages)
}

fn read_page(
    fs: &FileSystem,
    ino: Ino,
    at: u64,
    size: u64,
    pages: &mut Vec<(u64, u64)>,
) -> FsResult<()> {
    let mut bytes = Vec::new();
    let len = usize::try_from(PAGE).expect("a page fits");
    let got = fs.read(ino, at, len, &mut bytes)? as u64;
    let wanted = PAGE.min(size - at);
    if got != wanted || bytes.len() as u64 != wanted {
        return Err(FsError::Corrupt(format!(
            "{got} bytes read at {at}, not {wanted}"
        )));
    }
    if bytes.iter().any(|&b| b != 0) {
        pages.push((at, digest(&bytes)));
    }
    Ok(())
}

fn digest(bytes: &[u8]) -> u64 {
    bytes
        .chunks(8)
        .fold(0x9e37_79b9_7f4a_7c15, |sum: u64, piece| {
            let mut word = [0u8; 8];
            word[..piece.len()].copy_from_slice(piece);
            (sum ^ u64::from_le_bytes(word))
                .rotate_left(23)
                .wrapping_mul(0x2545_f491_4f6c_dd1d)
        })
}

/// The pages that are said to hold anything.
pub(super) fn pages(fs: &FileSystem, path: &str, node: &Node) -> FsResult<Pages> {
    with_path(fs, path, |ino| {
        let mut pages = Pages::new();
        for (at, _) in &node.content {
            let mut bytes = Vec::new();
            let len = usize::try_from(PAGE).expect("a page fits");
            fs.read(ino, *at, len, &mut bytes)?;
            pages.insert(*at, bytes.into());
        }
        Ok(pages)
    })
}

/// Names in a directory, in a few goes, as a user with a small buffer reads them.
pub(in crate::files) fn list(fs: &FileSystem, ino: Ino) -> FsResult<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    let mut offset = 0;
    loop {
        let mut taken = 0;
        let read = fs.read_dir(ino, offset, &mut |entry| {
            if taken == 5 {
                return Taken::Full;
            }
            taken += 1;
            offset = entry.offset;
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            Taken::More
        });
        match read {
            // A clone lies there for a transaction, which has its contents elsewhere.
            Err(FsError::Unsupported) => return Ok(Vec::new()),
            read => read?,
        }
        if taken == 0 {
            break;
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    let has_dots = names
        .iter()
        .filter(|name| *name == "." || *name == "..")
        .count()
        == 2;
    if names.len() != count || !has_dots {
        return Err(FsError::Corrupt(format!(
            "a directory of {count} entries: {names:?}"
        )));
    }
    names.retain(|name| name != "." && name != "..");
    Ok(names)
}

/// The first difference.
pub(in crate::files) fn difference(found: &Tree, expected: &Tree) -> String {
    for (path, node) in expected {
        match found.get(path) {
            None => return format!("{path:?} is missing ({node:?})"),
            Some(other) if other != node => return format!("{path:?} is {other:?}, not {node:?}"),
            Some(_) => {}
        }
    }
    match found.keys().find(|path| !expected.contains_key(*path)) {
        Some(path) => format!("{path:?} should not exist"),
        None => "no difference".to_owned(),
    }
}
