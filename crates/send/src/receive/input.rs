//! A stream as it is read: record by record, each checked.

use crate::SendError;
use std::io::{ErrorKind, Read};
use stitch_format::send_stream::{
    SEND_HEAD_BYTES, SEND_HEADER_BYTES, SendDecoder, SendHead, SendRecord,
};

pub(super) struct Input<'a> {
    from: &'a mut dyn Read,
    decoder: SendDecoder,
    body: Vec<u8>,
    pub(super) head: SendHead,
    /// Bytes read.
    pub(super) at: u64,
}

impl<'a> Input<'a> {
    pub(super) fn begin(from: &'a mut dyn Read) -> Result<Self, SendError> {
        let mut bytes = [0; SEND_HEAD_BYTES];
        fill(from, &mut bytes, 0)?;
        let head = SendHead::decode(&bytes);
        let head = head.map_err(|source| SendError::Format { at: 0, source })?;
        let (decoder, body) = (SendDecoder::new(&bytes), Vec::new());
        let at = SEND_HEAD_BYTES as u64;
        Ok(Self {
            from,
            decoder,
            body,
            head,
            at,
        })
    }

    /// The next record, and the step that it belongs to.
    pub(super) fn next(&mut self) -> Result<(u64, SendRecord<'_>), SendError> {
        let at = self.at;
        let fail = |source| SendError::Format { at, source };
        let mut header = [0; SEND_HEADER_BYTES];
        fill(self.from, &mut header, at)?;
        let len = self.decoder.body_len(&header).map_err(fail)?;
        debug_assert!(at >= SEND_HEAD_BYTES as u64, "records follow the head");
        self.body.resize(len, 0);
        fill(self.from, &mut self.body, at + SEND_HEADER_BYTES as u64)?;
        self.at = at + (SEND_HEADER_BYTES + len) as u64;
        debug_assert!(self.at > at && self.body.len() == len, "a record was read");
        self.decoder.record(&header, &self.body).map_err(fail)
    }
}

fn fill(from: &mut dyn Read, buffer: &mut [u8], at: u64) -> Result<(), SendError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => {
                return Err(SendError::Truncated {
                    at: at + filled as u64,
                });
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(SendError::pipe("read", error)),
        }
    }
    debug_assert_eq!(filled, buffer.len(), "no more was asked for");
    Ok(())
}
