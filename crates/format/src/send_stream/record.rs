//! Bodies of the records of a send stream.

use crate::FormatError;
use crate::codec::{Reader, put_bytes, put_varint};

const RECORD: &str = "record of a send stream";
const NAME_BYTES_MAX: usize = 255;
const MODE_MAX: u64 = 0o177_777;

/// A path from the directory of the stream on: names parted by slashes. Empty for the directory.
pub type ObjectPath<'a> = &'a [u8];

/// One change. Do not renumber kinds; 0 is never valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table of records names all fields")]
pub enum SendRecord<'a> {
    /// Names of the snapshot and of the one that is changed (empty in a complete stream).
    Begin { snapshot: &'a [u8], base: &'a [u8] },
    /// Moves what has the path aside, under the number `object`.
    Detach { path: ObjectPath<'a>, object: u64 },
    /// Removes a name of what is no directory.
    Remove { path: ObjectPath<'a> },
    /// Removes an empty directory.
    RemoveDir { path: ObjectPath<'a> },
    /// Ends the steps that take names away: they must be durable before those that follow.
    Detached,
    /// Moves the object that was moved aside to the path.
    Place { path: ObjectPath<'a>, object: u64 },
    /// Creates a directory.
    MakeDir { path: ObjectPath<'a> },
    /// Creates an empty file.
    MakeFile { path: ObjectPath<'a> },
    /// Creates a symbolic link.
    MakeSymlink {
        path: ObjectPath<'a>,
        target: &'a [u8],
    },
    /// Creates a device node, a FIFO or a socket; `mode` has the type's bits.
    MakeNode {
        path: ObjectPath<'a>,
        mode: u32,
        device: u64,
    },
    /// Gives what has the path `existing` one more name.
    Link {
        path: ObjectPath<'a>,
        existing: ObjectPath<'a>,
    },
    /// Contents of a file from an offset on.
    Write {
        path: ObjectPath<'a>,
        offset: u64,
        data: &'a [u8],
    },
    /// A range of a file without contents.
    Hole {
        path: ObjectPath<'a>,
        offset: u64,
        len_bytes: u64,
    },
    /// Size of a file; after its contents.
    Size { path: ObjectPath<'a>, size: u64 },
    /// User and group.
    Owner {
        path: ObjectPath<'a>,
        user: u32,
        group: u32,
    },
    /// An extended attribute.
    SetXattr {
        path: ObjectPath<'a>,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// Removes an extended attribute.
    DropXattr {
        path: ObjectPath<'a>,
        name: &'a [u8],
    },
    /// Mode and times (ns since 1970); the last record of an object.
    Attrs {
        path: ObjectPath<'a>,
        mode: u32,
        accessed_ns: i64,
        modified_ns: i64,
    },
    /// Ends the stream.
    End { records: u64, hash: [u8; 16] },
}

impl<'a> SendRecord<'a> {
    /// Returns the body of the record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        body(self, &mut out);
        out
    }

    /// Returns the record of a kind in a body.
    ///
    /// # Errors
    /// [`FormatError`]: there is none.
    pub fn decode(kind: u8, body: &'a [u8]) -> Result<Self, FormatError> {
        parse(kind, body)
    }

    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Begin { .. } => 1,
            Self::Detach { .. } => 2,
            Self::Remove { .. } => 3,
            Self::RemoveDir { .. } => 4,
            Self::Detached => 5,
            Self::Place { .. } => 6,
            Self::MakeDir { .. } => 7,
            Self::MakeFile { .. } => 8,
            Self::MakeSymlink { .. } => 9,
            Self::MakeNode { .. } => 10,
            Self::Link { .. } => 11,
            Self::Write { .. } => 12,
            Self::Hole { .. } => 13,
            Self::Size { .. } => 14,
            Self::Owner { .. } => 15,
            Self::SetXattr { .. } => 16,
            Self::DropXattr { .. } => 17,
            Self::Attrs { .. } => 18,
            Self::End { .. } => 19,
        }
    }
}

/// Appends the body of a record.
pub(super) fn body(record: &SendRecord<'_>, out: &mut Vec<u8>) {
    match *record {
        SendRecord::Begin { snapshot, base } => strings(out, snapshot, base),
        SendRecord::Remove { path }
        | SendRecord::RemoveDir { path }
        | SendRecord::MakeDir { path }
        | SendRecord::MakeFile { path } => put_bytes(out, path),
        SendRecord::Detached => {}
        SendRecord::Detach { path, object } | SendRecord::Place { path, object } => {
            numbers(out, path, [object, 0], 1);
        }
        SendRecord::MakeSymlink { path, target } => strings(out, path, target),
        SendRecord::MakeNode { path, mode, device } => {
            numbers(out, path, [mode.into(), device], 2);
        }
        SendRecord::Link { path, existing } => strings(out, path, existing),
        SendRecord::Write { path, offset, data } => {
            numbers(out, path, [offset, 0], 1);
            put_bytes(out, data);
        }
        SendRecord::Hole {
            path,
            offset,
            len_bytes,
        } => {
            numbers(out, path, [offset, len_bytes], 2);
        }
        SendRecord::Size { path, size } => numbers(out, path, [size, 0], 1),
        SendRecord::Owner { path, user, group } => {
            numbers(out, path, [user.into(), group.into()], 2);
        }
        SendRecord::SetXattr { path, name, value } => {
            strings(out, path, name);
            put_bytes(out, value);
        }
        SendRecord::DropXattr { path, name } => strings(out, path, name),
        SendRecord::Attrs {
            path,
            mode,
            accessed_ns,
            modified_ns,
        } => {
            numbers(out, path, [mode.into(), 0], 1);
            out.extend_from_slice(&accessed_ns.to_le_bytes());
            out.extend_from_slice(&modified_ns.to_le_bytes());
        }
        SendRecord::End { records, hash } => {
            put_varint(out, records);
            out.extend_from_slice(&hash);
        }
    }
}

fn strings(out: &mut Vec<u8>, first: &[u8], second: &[u8]) {
    put_bytes(out, first);
    put_bytes(out, second);
}

fn numbers(out: &mut Vec<u8>, path: &[u8], values: [u64; 2], count: usize) {
    put_bytes(out, path);
    for value in &values[..count] {
        put_varint(out, *value);
    }
}

/// Returns the record of a kind in `body`.
pub(super) fn parse(kind: u8, body: &[u8]) -> Result<SendRecord<'_>, FormatError> {
    let mut reader = Reader::new(RECORD, body);
    let record = match kind {
        1 => {
            let (snapshot, base) = (reader.bytes()?, reader.bytes()?);
            SendRecord::Begin { snapshot, base }
        }
        5 => SendRecord::Detached,
        2..=4 | 6 => parse_names(kind, &mut reader)?,
        7..=11 => parse_made(kind, &mut reader)?,
        12..=14 => parse_contents(kind, &mut reader)?,
        15..=18 => parse_attributes(kind, &mut reader)?,
        19 => {
            let records = reader.varint()?;
            let hash = reader.take(16)?.try_into().expect("taken as long");
            SendRecord::End { records, hash }
        }
        _ => return Err(reader.field("kind", "1 to 19", kind.to_string())),
    };
    reader.finish()?;
    debug_assert_eq!(record.kind(), kind, "kinds have one number");
    Ok(record)
}

fn parse_names<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<SendRecord<'a>, FormatError> {
    let path = below(reader)?;
    Ok(match kind {
        2 => {
            let object = reader.varint()?;
            SendRecord::Detach { path, object }
        }
        3 => SendRecord::Remove { path },
        4 => SendRecord::RemoveDir { path },
        _ => {
            let object = reader.varint()?;
            SendRecord::Place { path, object }
        }
    })
}

fn parse_made<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<SendRecord<'a>, FormatError> {
    let path = below(reader)?;
    Ok(match kind {
        7 => SendRecord::MakeDir { path },
        8 => SendRecord::MakeFile { path },
        9 => {
            let target = reader.bytes()?;
            if target.is_empty() || target.contains(&0) {
                return Err(reader.field("target", "one of a link", "another".to_owned()));
            }
            SendRecord::MakeSymlink { path, target }
        }
        10 => {
            let (mode, device) = (mode(reader)?, reader.varint()?);
            SendRecord::MakeNode { path, mode, device }
        }
        _ => {
            let existing = below(reader)?;
            SendRecord::Link { path, existing }
        }
    })
}

fn parse_contents<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<SendRecord<'a>, FormatError> {
    let path = below(reader)?;
    let offset = reader.varint()?;
    let (end, record) = match kind {
        12 => {
            let data = reader.bytes()?;
            let end = offset.checked_add(data.len() as u64);
            (end, SendRecord::Write { path, offset, data })
        }
        13 => {
            let len_bytes = reader.varint()?;
            let hole = SendRecord::Hole {
                path,
                offset,
                len_bytes,
            };
            (offset.checked_add(len_bytes), hole)
        }
        _ => (Some(offset), SendRecord::Size { path, size: offset }),
    };
    if end.is_none_or(|end| end > i64::MAX.unsigned_abs()) {
        return Err(reader.field("offset", "below 2^63", offset.to_string()));
    }
    Ok(record)
}

fn parse_attributes<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<SendRecord<'a>, FormatError> {
    let path = path(reader)?;
    Ok(match kind {
        15 => {
            let (user, group) = (word(reader)?, word(reader)?);
            SendRecord::Owner { path, user, group }
        }
        16 => {
            let (name, value) = (xattr_name(reader)?, reader.bytes()?);
            SendRecord::SetXattr { path, name, value }
        }
        17 => {
            let name = xattr_name(reader)?;
            SendRecord::DropXattr { path, name }
        }
        _ => SendRecord::Attrs {
            path,
            mode: mode(reader)?,
            accessed_ns: reader.i64()?,
            modified_ns: reader.i64()?,
        },
    })
}

fn word(reader: &mut Reader<'_>) -> Result<u32, FormatError> {
    let value = reader.varint()?;
    u32::try_from(value).map_err(|_| reader.field("owner", "32 bits", value.to_string()))
}

fn mode(reader: &mut Reader<'_>) -> Result<u32, FormatError> {
    let value = reader.varint()?;
    u32::try_from(value)
        .ok()
        .filter(|_| value <= MODE_MAX)
        .ok_or_else(|| reader.field("mode", "16 bits", value.to_string()))
}

fn xattr_name<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], FormatError> {
    let name = reader.bytes()?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(&0) {
        return Err(reader.field("attribute", "1 to 255 bytes", name.len().to_string()));
    }
    Ok(name)
}

/// A path of something below the directory.
fn below<'a>(reader: &mut Reader<'a>) -> Result<ObjectPath<'a>, FormatError> {
    let path = path(reader)?;
    if path.is_empty() {
        return Err(reader.field("path", "not empty", "empty".to_owned()));
    }
    Ok(path)
}

fn path<'a>(reader: &mut Reader<'a>) -> Result<ObjectPath<'a>, FormatError> {
    let path = reader.bytes()?;
    let is_name = |name: &[u8]| {
        let is_long = name.len() > NAME_BYTES_MAX;
        !matches!(name, b"" | b"." | b"..") && !is_long && !name.contains(&0)
    };
    if path.is_empty() || path.split(|byte| *byte == b'/').all(is_name) {
        return Ok(path);
    }
    let found = path.escape_ascii().to_string();
    Err(reader.field("path", "names parted by slashes", found))
}
