//! What is needed to go on with a stream that was interrupted.

use super::SendId;
use crate::FormatError;
use crate::codec::checksum;
use crate::table::fields;
use std::fmt::Write as _;

const TOKEN_BYTES: usize = 60;
const TOKEN_VERSION: u32 = 1;

fields! {
    /// Layout of a token, in hexadecimal digits.
    TOKEN_TABLE = "resume token", TOKEN_BYTES,
        "What `stitchfs receive --token` prints, and what the file `.stitchfs-receive/state` holds \
         while a stream is received, as hexadecimal digits and a line feed.";
    VERSION_AT: u32 = 0, "format version, 1";
    SNAPSHOT: [u8; 16] = 4, "identity of the snapshot";
    BASE: [u8; 16] = 20, "identity of the snapshot that is changed; zeros in a complete stream";
    FLAGS: u32 = 36, "those of the head of the stream";
    STEP: u64 = 40, "step to begin with";
    OFFSET: u64 = 48, "offset to begin with in the file of that step";
    CHECKSUM: u32 = 56, "CRC-32C of what is before";
}

/// A place in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SendPosition {
    /// Number of a step.
    pub step: u64,
    /// Offset in the contents of the file of the step.
    pub offset: u64,
}

/// The rest of a stream that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendToken {
    /// The snapshot.
    pub snapshot: SendId,
    /// The snapshot that the stream changes.
    pub base: Option<SendId>,
    /// Files that the sender could not read are left out.
    pub is_partial: bool,
    /// Where to go on.
    pub position: SendPosition,
}

impl SendToken {
    /// Returns the token as text.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut bytes = [0; TOKEN_BYTES];
        let flags = u32::from(self.base.is_some()) | u32::from(self.is_partial) << 1;
        VERSION_AT.put(&mut bytes, TOKEN_VERSION);
        SNAPSHOT.put(&mut bytes, self.snapshot.0);
        BASE.put(&mut bytes, self.base.map_or([0; 16], |base| base.0));
        FLAGS.put(&mut bytes, flags);
        STEP.put(&mut bytes, self.position.step);
        OFFSET.put(&mut bytes, self.position.offset);
        let sum = checksum(&bytes[..CHECKSUM.range().start]);
        CHECKSUM.put(&mut bytes, sum);
        let mut out = String::with_capacity(2 * TOKEN_BYTES);
        for byte in bytes {
            write!(out, "{byte:02x}").expect("a string takes what is written to it");
        }
        debug_assert_eq!(out.len(), 2 * TOKEN_BYTES, "two digits a byte");
        out
    }

    /// Returns the token in a text.
    ///
    /// # Errors
    /// [`FormatError`]: it is none, or is damaged.
    pub fn decode(text: &str) -> Result<Self, FormatError> {
        let bytes = digits(text.trim())
            .ok_or_else(|| TOKEN_TABLE.wrong("digits", "120 hexadecimal ones", text.len()))?;
        let (expected, found) = (
            checksum(&bytes[..CHECKSUM.range().start]),
            CHECKSUM.get(&bytes),
        );
        super::check_sum(&TOKEN_TABLE, expected, found)?;
        let version = VERSION_AT.get(&bytes);
        let flags = FLAGS.get(&bytes);
        if version != TOKEN_VERSION || flags > 3 {
            return Err(TOKEN_TABLE.wrong("version", "1", version));
        }
        let (step, offset) = (STEP.get(&bytes), OFFSET.get(&bytes));
        Ok(Self {
            snapshot: SendId(SNAPSHOT.get(&bytes)),
            base: (flags & 1 != 0).then(|| SendId(BASE.get(&bytes))),
            is_partial: flags & 2 != 0,
            position: SendPosition { step, offset },
        })
    }
}

fn digits(text: &str) -> Option<[u8; TOKEN_BYTES]> {
    let mut bytes = [0; TOKEN_BYTES];
    if text.len() != 2 * TOKEN_BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}
