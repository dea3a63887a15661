//! Applying a stream to a directory.
//!
//! ```text
//! DIR/.stitchfs-receive/state     token: where to go on
//! DIR/.stitchfs-receive/NUMBER    object that was moved aside
//! DIR                             user.stitchfs.received: identity of the last snapshot
//! ```
//!
//! Records are applied one after the other, each after its checksum was compared. The state is
//! written when a stream ends early, at the record `Detached`, and each 64 MiB, after a sync. Each
//! record can be applied again, so that a stream can go on from an older state after a crash.

mod apply;
mod input;
mod state;

use crate::SendError;
use crate::beneath::Root;
use crate::host::Host;
use apply::Target;
use input::Input;
use rustix::fs::Mode;
use rustix::io::Errno;
use state::State;
use std::io::Read;
use std::path::Path;
use stitch_format::send_stream::{SendHead, SendPosition, SendRecord, SendToken};

/// Attribute of a directory that has the identity of the snapshot that it holds.
pub const RECEIVED_XATTR: &str = "user.stitchfs.received";
/// Default of [`ReceiveOptions::checkpoint_bytes`].
const CHECKPOINT_BYTES: u64 = 64 << 20;

/// How a stream is applied.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveOptions {
    /// Leaves out device nodes, which only root creates, instead of failing.
    pub skip_devices: bool,
    /// Bytes of the stream after which the state is written.
    pub checkpoint_bytes: u64,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self {
            skip_devices: false,
            checkpoint_bytes: CHECKPOINT_BYTES,
        }
    }
}

/// What could not be set as it was sent, without failing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Extended attributes, with paths, that the file system or the caller cannot have.
    pub xattrs: Vec<String>,
    /// Device nodes that were left out.
    pub devices: u64,
    /// Objects whose owner is another than sent: the caller is not root.
    pub owners: u64,
    /// The directory cannot remember what it holds: no incremental stream can follow.
    pub identity: bool,
}

/// What was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Name of the snapshot.
    pub name: Vec<u8>,
    /// First bytes of the stream.
    pub head: SendHead,
    /// Bytes of the stream.
    pub bytes: u64,
    /// What is other than it was sent.
    pub left: Left,
}

/// Returns the token of a directory that holds a part of a stream; `None` if it holds none.
///
/// # Errors
/// The state cannot be read.
pub fn token_of(dir: &Path) -> Result<Option<SendToken>, SendError> {
    token_at(&Root::open(dir)?)
}

/// Returns the token of a directory that is open, as [`token_of`] does.
///
/// # Errors
/// The state cannot be read.
pub fn token_at(root: &Root) -> Result<Option<SendToken>, SendError> {
    state::read(root)
}

/// Applies a stream to a directory, which is created if it does not exist. Calls `progress` with
/// the step, the number of steps and the bytes read.
///
/// # Durability
/// When it returns, what was received is durable.
///
/// # Errors
/// [`SendError::Refused`] and those of the head: the directory is as it was before.
/// [`SendError::Interrupted`]: it holds a part; the token says where to go on.
pub fn receive(
    input: &mut dyn Read,
    dir: &Path,
    options: ReceiveOptions,
    progress: &mut dyn FnMut(u64, u64, u64),
) -> Result<Received, SendError> {
    let mut open = |is_new: bool| {
        if is_new {
            create(dir)?;
        }
        let host = Host::open_locked(dir)?;
        Ok(Root::new(Box::new(host), dir.to_owned()))
    };
    receive_at(input, &mut open, options, progress)
}

fn create(dir: &Path) -> Result<(), SendError> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(SendError::io("create", dir.to_owned(), errno)),
    }
}

/// Applies a stream as [`receive()`] does to a directory that `open` opens, locked against other
/// streams. It creates it before if it is told that the stream is a new one.
///
/// # Errors
/// Those of [`receive()`].
pub fn receive_at(
    input: &mut dyn Read,
    open: &mut dyn FnMut(bool) -> Result<Root, SendError>,
    options: ReceiveOptions,
    progress: &mut dyn FnMut(u64, u64, u64),
) -> Result<Received, SendError> {
    let mut input = Input::begin(input)?;
    let head = input.head;
    // The first record too is read before anything is changed.
    let name = match input.next()? {
        (_, SendRecord::Begin { snapshot, .. }) => snapshot.to_vec(),
        _ => {
            return Err(SendError::refused(
                "the stream does not begin with its names",
            ));
        }
    };
    let is_new = head.base.is_none() && head.start == SendPosition::default();
    let state = State::begin(open(is_new)?, &head, &name)?;
    let mut position = state.position;
    let mut target = Target::new(state, &head, options);
    let applied = apply_all(&mut input, &mut target, &mut position, progress);
    let ended = applied.and_then(|()| target.finish(&head));
    if let Err(cause) = ended {
        return Err(interrupted(
            &mut target,
            &state::token(&head, position),
            cause,
        ));
    }
    let (bytes, left) = (input.at, target.into_left());
    Ok(Received {
        name,
        head,
        bytes,
        left,
    })
}

/// Saves where to go on, after what was applied is durable.
fn interrupted(target: &mut Target, token: &SendToken, cause: SendError) -> SendError {
    let saved = target
        .sync()
        .and_then(|()| state::write(target.root(), token));
    // Else the state is the one before, which serves as well.
    let token = match saved {
        Ok(()) => *token,
        Err(_) => state::read(target.root()).ok().flatten().unwrap_or(*token),
    };
    let (token, cause) = (token.encode(), Box::new(cause));
    SendError::Interrupted { token, cause }
}

fn apply_all(
    input: &mut Input<'_>,
    target: &mut Target,
    position: &mut SendPosition,
    progress: &mut dyn FnMut(u64, u64, u64),
) -> Result<(), SendError> {
    let (head, mut saved) = (input.head, 0);
    loop {
        let at = input.at;
        let (step, record) = input.next()?;
        if matches!(record, SendRecord::End { .. }) {
            return Ok(());
        }
        target.apply(&record)?;
        let before = if step == position.step {
            position.offset
        } else {
            0
        };
        let offset = match record {
            SendRecord::Write { offset, data, .. } => offset + data.len() as u64,
            SendRecord::Hole {
                offset, len_bytes, ..
            } => offset + len_bytes,
            _ => before,
        };
        debug_assert!(step >= position.step, "steps are in order");
        *position = SendPosition { step, offset };
        if matches!(record, SendRecord::Detached) || at - saved >= target.checkpoint_bytes() {
            saved = at;
            target.sync()?;
            state::write(target.root(), &state::token(&head, *position))?;
        }
        progress(step, head.steps, at);
    }
}
