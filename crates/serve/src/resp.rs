//! The Redis protocol, versions 2 and 3: commands come in by [`Decoder`], replies go out by
//! [`Reply`].

mod decode;
mod reply;

pub use decode::split_words;
pub(crate) use decode::{Decoded, Decoder, Limits};
pub(crate) use reply::{Protocol, Reply};
