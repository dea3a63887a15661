//! Writing a stream.

use crate::SendError;
use crate::extents::{Piece, pieces};
use crate::plan::{Object, Task, plan};
use crate::tree::{Node, Tree};
use crate::xattrs;
use rustix::fs::FileType;
use std::io::{self, Write};
use stitch_format::send_stream::{
    SEND_DATA_BYTES_MAX, SendEncoder, SendHead, SendId, SendRecord, SendToken,
};

/// A snapshot, as one side of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// What it holds.
    pub tree: &'a Tree,
    /// Name, for messages at the other end.
    pub name: &'a [u8],
    /// Identity.
    pub id: SendId,
    /// When it was created, in nanoseconds since 1970.
    pub created_ns: i64,
    /// Of the base: since when the other side may have other contents, in nanoseconds since 1970.
    /// An object with one time of change in both is compared if it changed later.
    pub since_ns: i64,
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Steps in all.
    pub steps: u64,
    /// Bytes of contents of files.
    pub content_bytes: u64,
}

/// Writes the stream from one snapshot, or from nothing, to another.
pub struct Sender<'a> {
    base: Option<Side<'a>>,
    snapshot: Side<'a>,
    tasks: Vec<Task>,
    /// Called before each step with its number, the number of steps, and bytes written.
    progress: &'a mut dyn FnMut(u64, u64, u64),
}

impl std::fmt::Debug for Sender<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sender({} steps)", self.tasks.len())
    }
}

impl<'a> Sender<'a> {
    /// Plans the steps.
    ///
    /// # Errors
    /// [`SendError::Refused`]: the two are not of one directory, or are the same. Others: what may
    /// have changed within a clock tick of the base cannot be read.
    pub fn new(
        base: Option<Side<'a>>,
        snapshot: Side<'a>,
        progress: &'a mut dyn FnMut(u64, u64, u64),
    ) -> Result<Self, SendError> {
        if let Some(base) = base {
            if base.id == snapshot.id {
                return Err(SendError::refused("both are the same snapshot"));
            }
            if base.tree.root_ino != snapshot.tree.root_ino {
                return Err(SendError::refused(
                    "the snapshots are of two directories; send the second one completely",
                ));
            }
        }
        let old = base.map(|base| (base.tree, base.since_ns));
        let tasks = plan(old, snapshot.tree)?;
        Ok(Self {
            base,
            snapshot,
            tasks,
            progress,
        })
    }

    fn is_partial(&self) -> bool {
        let base = self
            .base
            .is_some_and(|base| !base.tree.skipped().is_empty());
        base || !self.snapshot.tree.skipped().is_empty()
    }

    /// Writes the stream, or the rest of one that was interrupted.
    ///
    /// # Errors
    /// [`SendError::Refused`]: the rest is of another stream; others if files cannot be read or the
    /// stream cannot be written.
    pub fn send(
        &mut self,
        out: &mut dyn Write,
        rest: Option<&SendToken>,
    ) -> Result<Sent, SendError> {
        let steps = self.tasks.len() as u64;
        if let Some(token) = rest {
            self.check_token(token, steps)?;
        }
        let start = rest.map(|token| token.position).unwrap_or_default();
        debug_assert!(start.step <= steps, "a token of later steps was refused");
        let head = SendHead {
            snapshot: self.snapshot.id,
            base: self.base.map(|base| base.id),
            created_ns: self.snapshot.created_ns,
            steps,
            start,
            is_partial: self.is_partial(),
        };
        let mut writer = Writer::begin(out, &head)?;
        writer.put(&SendRecord::Begin {
            snapshot: self.snapshot.name,
            base: self.base.map_or(b"", |base| base.name),
        })?;
        let tasks = std::mem::take(&mut self.tasks);
        for (step, task) in (0..).zip(&tasks).skip_while(|(step, _)| *step < start.step) {
            (self.progress)(step, steps, writer.sent.bytes);
            writer.begin_step(step);
            let from = if step == start.step { start.offset } else { 0 };
            self.task(task, from, &mut writer)?;
        }
        self.tasks = tasks;
        (self.progress)(steps, steps, writer.sent.bytes);
        writer.end(steps)
    }

    fn check_token(&self, token: &SendToken, steps: u64) -> Result<(), SendError> {
        let base = self.base.map(|base| base.id);
        let text = if token.snapshot != self.snapshot.id {
            "the token is of a stream of another snapshot"
        } else if token.base != base {
            "the token is of a stream with another base; give the same -i as before"
        } else if token.is_partial != self.is_partial() || token.position.step > steps {
            "the token is of a stream of another user, or with other options; send as before"
        } else {
            return Ok(());
        };
        Err(SendError::refused(text))
    }

    fn task(&self, task: &Task, from: u64, out: &mut Writer<'_>) -> Result<(), SendError> {
        match task {
            Task::Detach { path, ino } => out.put(&SendRecord::Detach { path, object: *ino }),
            Task::Remove { path } => out.put(&SendRecord::Remove { path }),
            Task::RemoveDir { path } => out.put(&SendRecord::RemoveDir { path }),
            Task::Detached => out.put(&SendRecord::Detached),
            Task::MakeDir { path } => out.put(&SendRecord::MakeDir { path }),
            Task::PlaceDir { path, ino } => out.put(&SendRecord::Place { path, object: *ino }),
            Task::Object(object) => self.object(object, from, out),
            Task::DirAttrs { path, ino, before } => {
                let node = &self.snapshot.tree.nodes[ino];
                self.attributes(path, node, before.as_deref(), out)
            }
        }
    }

    fn object(&self, object: &Object, from: u64, out: &mut Writer<'_>) -> Result<(), SendError> {
        let node = &self.snapshot.tree.nodes[&object.ino];
        debug_assert!(!node.is_dir(), "directories have steps of their own");
        let mut names = object.names.iter();
        let path = match (&object.kept, &object.before, names.as_slice().first()) {
            (Some(path), ..) => path,
            (None, before, Some(path)) => {
                names.next();
                match before {
                    Some(_) => out.put(&SendRecord::Place {
                        path,
                        object: object.ino,
                    })?,
                    None => self.make(path, node, out)?,
                }
                path
            }
            (None, _, None) => return Ok(()),
        };
        for name in names {
            out.put(&SendRecord::Link {
                path: name,
                existing: path,
            })?;
        }
        if node.kind() == FileType::RegularFile {
            self.contents(path, node, (object.before.as_deref(), from), out)?;
        }
        self.attributes(path, node, object.before.as_deref(), out)
    }

    fn make(&self, path: &[u8], node: &Node, out: &mut Writer<'_>) -> Result<(), SendError> {
        match node.kind() {
            FileType::RegularFile => out.put(&SendRecord::MakeFile { path }),
            FileType::Symlink => {
                let root = &self.snapshot.tree.root;
                let target = root.read_link(path);
                let target = target.map_err(|errno| root.error("read the link", path, errno))?;
                let target = &target;
                out.put(&SendRecord::MakeSymlink { path, target })
            }
            _ => {
                let (mode, device) = (node.mode, node.device);
                out.put(&SendRecord::MakeNode { path, mode, device })
            }
        }
    }

    fn contents(
        &self,
        path: &[u8],
        node: &Node,
        (before, from): (Option<&[u8]>, u64),
        out: &mut Writer<'_>,
    ) -> Result<(), SendError> {
        let open = |tree: &Tree, path: &[u8]| {
            tree.root
                .open_file(path)
                .map_err(|errno| tree.root.error("open", path, errno))
        };
        let new = open(self.snapshot.tree, path)?;
        let old = match (before, self.base) {
            (Some(before), Some(base)) => {
                let file = open(base.tree, before)?;
                let size = file
                    .size()
                    .map_err(|errno| ReadFailed(errno.into()).at(self, path))?;
                Some((file, size))
            }
            _ => None,
        };
        let old = old.as_ref().map(|(file, size)| (&**file, *size));
        let mut give = |piece: Piece<'_>| -> Result<(), PieceError> {
            let record = match piece {
                Piece::Data(offset, data) => SendRecord::Write { path, offset, data },
                Piece::Hole(range) => {
                    let (offset, len_bytes) = (range.start, range.end - range.start);
                    SendRecord::Hole {
                        path,
                        offset,
                        len_bytes,
                    }
                }
            };
            out.put(&record).map_err(PieceError::Stream)
        };
        pieces(old, (&*new, node.size), from, &mut give).map_err(|error| match error {
            PieceError::Read(error) => ReadFailed(error).at(self, path),
            PieceError::Stream(error) => error,
        })?;
        out.put(&SendRecord::Size {
            path,
            size: node.size,
        })
    }

    fn attributes(
        &self,
        path: &[u8],
        node: &Node,
        before: Option<&[u8]>,
        out: &mut Writer<'_>,
    ) -> Result<(), SendError> {
        let read = |tree: &Tree, path: &[u8]| {
            let fail = |errno| tree.root.error("read the attributes", path, errno);
            xattrs::read(&tree.root, path).map_err(fail)
        };
        let (user, group) = (node.user, node.group);
        out.put(&SendRecord::Owner { path, user, group })?;
        let after = read(self.snapshot.tree, path)?;
        let old = match (before, self.base) {
            (Some(before), Some(base)) => read(base.tree, before)?,
            _ => xattrs::Xattrs::new(),
        };
        for name in old.keys().filter(|name| !after.contains_key(*name)) {
            out.put(&SendRecord::DropXattr { path, name })?;
        }
        for (name, value) in &after {
            // The kernel drops capabilities when the file is written or gets another owner.
            if old.get(name) != Some(value) || name.starts_with(b"security.") {
                out.put(&SendRecord::SetXattr { path, name, value })?;
            }
        }
        out.put(&SendRecord::Attrs {
            path,
            mode: node.mode,
            accessed_ns: node.accessed,
            modified_ns: node.modified,
        })
    }
}

/// A read of contents that failed.
struct ReadFailed(io::Error);

impl ReadFailed {
    fn at(self, sender: &Sender<'_>, path: &[u8]) -> SendError {
        let path = sender.snapshot.tree.root.shown(path);
        SendError::Io {
            op: "read",
            path,
            source: self.0,
        }
    }
}

enum PieceError {
    Read(io::Error),
    Stream(SendError),
}

impl From<io::Error> for PieceError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// The stream as it is written.
struct Writer<'a> {
    out: &'a mut dyn Write,
    encoder: SendEncoder,
    buffer: Vec<u8>,
    step: u64,
    sent: Sent,
}

impl<'a> Writer<'a> {
    fn begin(out: &'a mut dyn Write, head: &SendHead) -> Result<Self, SendError> {
        let bytes = head.encode();
        let mut writer = Self {
            out,
            encoder: SendEncoder::new(&bytes),
            buffer: bytes.to_vec(),
            step: head.start.step,
            sent: Sent {
                steps: head.steps,
                ..Sent::default()
            },
        };
        writer.flush()?;
        Ok(writer)
    }

    /// Begins a step: records that follow are of it.
    fn begin_step(&mut self, step: u64) {
        debug_assert!(step >= self.step, "steps are written in their order");
        debug_assert!(step < self.sent.steps, "there are no more steps");
        self.step = step;
    }

    fn put(&mut self, record: &SendRecord<'_>) -> Result<(), SendError> {
        if let SendRecord::Write { data, .. } = record {
            debug_assert!(data.len() <= SEND_DATA_BYTES_MAX, "data fit a record");
            self.sent.content_bytes += data.len() as u64;
        }
        debug_assert!(self.buffer.is_empty(), "the last record was written");
        self.encoder.record(self.step, record, &mut self.buffer);
        debug_assert!(!self.buffer.is_empty(), "a record has bytes");
        self.flush()
    }

    fn flush(&mut self) -> Result<(), SendError> {
        let written = self.out.write_all(&self.buffer);
        written.map_err(|error| SendError::pipe("write", error))?;
        self.sent.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn end(mut self, steps: u64) -> Result<Sent, SendError> {
        debug_assert!(self.buffer.is_empty(), "records are written at once");
        debug_assert_eq!(steps, self.sent.steps, "the head has the number of steps");
        self.encoder.clone().end(steps, &mut self.buffer);
        self.flush()?;
        self.out
            .flush()
            .map_err(|error| SendError::pipe("write", error))?;
        Ok(self.sent)
    }
}
