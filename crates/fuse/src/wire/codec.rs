//! Readers and writers of fixed-width numbers: the one place that knows the byte order.
//!
//! FUSE uses the machine's byte order, since both ends run on it.

#![expect(
    clippy::host_endian_bytes,
    reason = "the FUSE protocol is in the machine's byte order"
)]

/// The fault of a malformed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The request ends before its fields do.
    #[error("the request ends early")]
    Truncated,
    /// A name has no terminating zero byte, or is empty.
    #[error("a name is malformed")]
    BadName,
    /// The length in the header differs from the number of bytes received.
    #[error("the header's length is not the request's")]
    BadLength,
    /// A field has a value outside its range.
    #[error("a field is out of range")]
    BadValue,
}

/// Reads fields from the front of a request.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the first byte.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when there are fewer.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self
            .rest
            .split_at_checked(count)
            .ok_or(WireError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, tail) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    /// Skips padding.
    ///
    /// # Errors
    /// [`WireError::Truncated`] when there are fewer bytes.
    pub fn skip(&mut self, count: usize) -> Result<(), WireError> {
        self.bytes(count).map(|_| ())
    }

    /// The next 16 bits.
    ///
    /// # Errors
    /// [`WireError::Truncated`]
    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_ne_bytes)
    }

    /// The next 32 bits.
    ///
    /// # Errors
    /// [`WireError::Truncated`]
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The next 64 bits.
    ///
    /// # Errors
    /// [`WireError::Truncated`]
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_ne_bytes)
    }

    /// The next 64 bits, signed.
    ///
    /// # Errors
    /// [`WireError::Truncated`]
    pub fn i64(&mut self) -> Result<i64, WireError> {
        self.array().map(i64::from_ne_bytes)
    }

    /// Reads a name and its terminating zero.
    ///
    /// # Errors
    /// [`WireError::BadName`] when it is empty or has no end.
    pub fn name(&mut self) -> Result<&'a [u8], WireError> {
        let name = self.text()?;
        if name.is_empty() {
            Err(WireError::BadName)
        } else {
            Ok(name)
        }
    }

    /// Reads bytes and their terminating zero; they may be empty.
    ///
    /// # Errors
    /// [`WireError::BadName`] when they have no end.
    pub fn text(&mut self) -> Result<&'a [u8], WireError> {
        let end = self
            .rest
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(WireError::BadName)?;
        let (text, tail) = self.rest.split_at(end);
        self.rest = &tail[1..];
        Ok(text)
    }

    /// Returns the remaining bytes.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Appends bytes to a reusable buffer, up to a limit.
///
/// Handlers write a link's target, an attribute's value or a file's bytes to it.
#[derive(Debug)]
pub struct Sink<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    limit: usize,
}

impl<'a> Sink<'a> {
    /// Creates a sink of up to `limit` bytes, after the contents of `out`.
    #[must_use]
    pub const fn new(out: &'a mut Vec<u8>, limit: usize) -> Self {
        let start = out.len();
        Self { out, start, limit }
    }

    /// Bytes put so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.out.len() - self.start
    }

    /// True when nothing was put.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that still fit.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.limit - self.len()
    }

    /// Puts all of `bytes`, or nothing when they do not fit.
    #[must_use]
    pub fn put(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.room() {
            return false;
        }
        self.out.extend_from_slice(bytes);
        true
    }

    /// Puts as much of `bytes` as fits, and returns the length.
    pub fn put_some(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        self.out.extend_from_slice(&bytes[..count]);
        count
    }

    /// Puts zero bytes, as [`Self::put`].
    #[must_use]
    pub fn put_zeros(&mut self, count: usize) -> bool {
        if count > self.room() {
            return false;
        }
        self.out.resize(self.out.len() + count, 0);
        true
    }

    /// Lets `append` append to the buffer itself.
    ///
    /// # Panics
    /// If it appends more than fits, or removes bytes.
    pub fn append<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.out.len();
        let result = append(self.out);
        assert!(self.out.len() >= before, "bytes are appended, not taken");
        assert!(
            self.len() <= self.limit,
            "no more is appended than there is room for"
        );
        result
    }

    /// Removes the bytes after the first `len`.
    pub fn truncate(&mut self, len: usize) {
        debug_assert!(len <= self.len(), "bytes are taken off the end");
        self.out.truncate(self.start + len);
    }
}

/// Writes fields one after the other into an array of exactly their size.
#[derive(Clone, Copy, Debug)]
pub struct Fields<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Default for Fields<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            at: 0,
        }
    }
}

impl<const N: usize> Fields<N> {
    fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    /// 16 bits.
    #[must_use]
    pub fn u16(self, value: u16) -> Self {
        self.put(&value.to_ne_bytes())
    }

    /// 32 bits.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.put(&value.to_ne_bytes())
    }

    /// 32 bits, signed.
    #[must_use]
    pub fn i32(self, value: i32) -> Self {
        self.put(&value.to_ne_bytes())
    }

    /// 64 bits.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.put(&value.to_ne_bytes())
    }

    /// 64 bits, signed.
    #[must_use]
    pub fn i64(self, value: i64) -> Self {
        self.put(&value.to_ne_bytes())
    }

    /// Bytes that were encoded already.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.put(bytes)
    }

    /// Zero bytes.
    #[must_use]
    pub fn zeros(mut self, count: usize) -> Self {
        debug_assert!(self.at + count <= N, "zeros are in the structure");
        self.at += count;
        self
    }

    /// The array.
    ///
    /// # Panics
    /// If the fields do not fill it: their sum is part of the protocol.
    #[must_use]
    pub fn done(self) -> [u8; N] {
        assert!(self.at == N, "the fields fill their structure");
        self.bytes
    }
}
