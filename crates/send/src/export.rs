//! A tree as a tar archive.
//!
//! Entries have the form of GNU tar, with pax headers for what it has no field for: times in
//! nanoseconds, extended attributes (`SCHILY.xattr.NAME`) and access lists (`SCHILY.acl.access`,
//! `SCHILY.acl.default`). GNU tar and bsdtar read both. Holes stay holes.

use crate::SendError;
use crate::tree::{Node, Tree};
use crate::xattrs;
use rustix::fs::FileType;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

const SECOND_NS: i64 = 1_000_000_000;
/// Bytes of the head of an access list as an attribute, and of each entry.
const LIST_HEAD_BYTES: usize = 4;
const LIST_ENTRY_BYTES: usize = 8;

/// What was exported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Number of entries.
    pub entries: u64,
    /// Sockets, which archives do not hold.
    pub sockets: Vec<PathBuf>,
}

/// Writes a tree as an archive. Calls `progress` with the number of entries written and of all.
///
/// # Errors
/// A file cannot be read, or the archive cannot be written.
pub fn export(
    tree: &Tree,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Exported, SendError> {
    let is_cut = false;
    let mut builder = Builder::new(Out { to: out, is_cut });
    builder.sparse(true);
    let (firsts, done) = (HashMap::new(), Exported::default());
    let mut archive = Archive {
        tree,
        builder,
        firsts,
        done,
    };
    let written = archive.write(progress);
    archive.builder.get_mut().is_cut = written.is_err();
    written.map(|()| archive.done)
}

/// The archive as it is written. One that is cut has no end, so no program takes it for a whole
/// one; the builder would write an end whatever happened.
struct Out<'o> {
    to: &'o mut dyn Write,
    is_cut: bool,
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_cut {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

struct Archive<'a, 'o> {
    tree: &'a Tree,
    builder: Builder<Out<'o>>,
    /// The name under which a file is in the archive.
    firsts: HashMap<u64, Vec<u8>>,
    done: Exported,
}

impl Archive<'_, '_> {
    fn write(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), SendError> {
        self.entry(b"", self.tree.root_ino)?;
        let names = self.tree.preorder();
        let total = names.len() as u64;
        for (name, ino) in names {
            progress(self.done.entries, total);
            self.entry(&self.tree.path(name), ino)?;
        }
        let ended = self.builder.finish();
        ended.map_err(|error| SendError::pipe("write", error))
    }

    fn entry(&mut self, path: &[u8], ino: u64) -> Result<(), SendError> {
        let node = &self.tree.nodes[&ino];
        if node.kind() == FileType::Socket {
            self.done.sockets.push(self.tree.root.shown(path));
            return Ok(());
        }
        self.done.entries += 1;
        let fail = |source| SendError::Io {
            op: "export",
            path: self.tree.root.shown(path),
            source,
        };
        if let Some(first) = self.firsts.get(&ino) {
            let mut header = header(node, EntryType::Link);
            let (path, first) = (OsStr::from_bytes(path), OsStr::from_bytes(first));
            return self
                .builder
                .append_link(&mut header, path, first)
                .map_err(fail);
        }
        if !node.is_dir() {
            self.firsts.insert(ino, path.to_vec());
        }
        let xattrs = xattrs::read(&self.tree.root, path);
        let xattrs = xattrs.map_err(|errno| fail(errno.into()))?;
        let extensions = extensions(node, &xattrs);
        let extensions = extensions
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_slice()));
        self.builder
            .append_pax_extensions(extensions)
            .map_err(fail)?;
        self.object(path, node).map_err(|source| SendError::Io {
            op: "export",
            path: self.tree.root.shown(path),
            source,
        })
    }

    fn object(&mut self, path: &[u8], node: &Node) -> io::Result<()> {
        let (root, name) = (&self.tree.root, OsStr::from_bytes(path));
        let name = if path.is_empty() {
            Path::new("./")
        } else {
            Path::new(name)
        };
        match node.kind() {
            FileType::RegularFile => {
                let mut file = root.open_file(path)?;
                let file = file.as_file().ok_or(io::ErrorKind::Unsupported)?;
                self.builder.append_file(name, file)
            }
            FileType::Directory => {
                let mut header = header(node, EntryType::Directory);
                self.builder.append_data(&mut header, name, io::empty())
            }
            FileType::Symlink => {
                let mut header = header(node, EntryType::Symlink);
                let target = root.read_link(path)?;
                self.builder
                    .append_link(&mut header, name, OsStr::from_bytes(&target))
            }
            kind => {
                let mut header = header(node, node_type(kind)?);
                header.set_device_major(rustix::fs::major(node.device))?;
                header.set_device_minor(rustix::fs::minor(node.device))?;
                self.builder.append_data(&mut header, name, io::empty())
            }
        }
    }
}

fn node_type(kind: FileType) -> io::Result<EntryType> {
    match kind {
        FileType::CharacterDevice => Ok(EntryType::Char),
        FileType::BlockDevice => Ok(EntryType::Block),
        FileType::Fifo => Ok(EntryType::Fifo),
        _ => Err(io::Error::other("is of an unknown kind")),
    }
}

fn header(node: &Node, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(node.mode & 0o7777);
    header.set_uid(node.user.into());
    header.set_gid(node.group.into());
    let seconds = node.modified.div_euclid(SECOND_NS);
    // Times before 1970 are in the pax header alone.
    header.set_mtime(u64::try_from(seconds).unwrap_or_default());
    header.set_size(0);
    header
}

/// The pax header of an object.
fn extensions(node: &Node, xattrs: &xattrs::Xattrs) -> Vec<(String, Vec<u8>)> {
    let mut found = vec![
        ("mtime".to_owned(), pax_time(node.modified).into_bytes()),
        ("atime".to_owned(), pax_time(node.accessed).into_bytes()),
    ];
    for (name, value) in xattrs {
        let list = match name.as_slice() {
            b"system.posix_acl_access" => Some("access"),
            b"system.posix_acl_default" => Some("default"),
            _ => None,
        };
        match (list, str::from_utf8(name)) {
            (Some(list), _) => {
                let text = access_list(value).into_bytes();
                found.push((format!("SCHILY.acl.{list}"), text));
            }
            (None, Ok(name)) => found.push((format!("SCHILY.xattr.{name}"), value.clone())),
            // Keys of pax headers are UTF-8.
            (None, Err(_)) => {}
        }
    }
    found
}

/// Seconds since 1970 with a fraction, rounded down as pax wants it.
fn pax_time(ns: i64) -> String {
    let is_negative = ns < 0;
    let ns = ns.unsigned_abs();
    let second = SECOND_NS.unsigned_abs();
    let sign = if is_negative { "-" } else { "" };
    format!("{sign}{}.{:09}", ns / second, ns % second)
}

/// The text of an access list: `user::rwx,user:1000:r--,...`.
fn access_list(value: &[u8]) -> String {
    let mut text = String::new();
    let entries = value.get(LIST_HEAD_BYTES..).unwrap_or_default();
    for entry in entries.chunks_exact(LIST_ENTRY_BYTES) {
        let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let (tag, rights) = (half(0), half(2));
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let who = match tag {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            _ => "other:".to_owned(),
        };
        let right = |bit: u16, letter: char| if rights & bit != 0 { letter } else { '-' };
        let (read, write, pass) = (right(4, 'r'), right(2, 'w'), right(1, 'x'));
        let comma = if text.is_empty() { "" } else { "," };
        write!(text, "{comma}{who}:{read}{write}{pass}").expect("a string takes what is written");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_nine_digits_of_a_fraction() {
        for (ns, expected) in [
            (0, "0.000000000"),
            (1_234_000_000_005, "1234.000000005"),
            (-1_500_000_000, "-1.500000000"),
        ] {
            assert_eq!(pax_time(ns), expected);
        }
    }

    #[test]
    fn access_lists_are_text() {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in [(1u16, 7u16, u32::MAX), (2, 4, 1000), (16, 5, 0), (32, 0, 0)] {
            value.extend(tag.to_le_bytes());
            value.extend(rights.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        assert_eq!(
            access_list(&value),
            "user::rwx,user:1000:r--,mask::r-x,other::---"
        );
        assert_eq!(access_list(&[1]), "");
    }
}
