//! An archive in whole records, as tar(1) writes it: readers of pipes and tapes ask for these.

use std::io::{self, Write};

/// Bytes of a record: 20 blocks of 512 bytes.
pub(super) const RECORD_BYTES: usize = 10_240;
/// Records that are written at once.
const RECORDS_MAX: usize = 25;

/// A writer that hands on whole records. The last one is filled with zeros, which follow the end of
/// an archive.
pub(super) struct RecordWriter<W> {
    to: W,
    buffer: Vec<u8>,
}

impl<W: Write> RecordWriter<W> {
    pub(super) fn new(to: W) -> Self {
        Self {
            to,
            buffer: Vec::with_capacity(RECORDS_MAX * RECORD_BYTES),
        }
    }

    /// Fills and writes the last record. An archive that is dropped without this was cut.
    ///
    /// # Errors
    /// Those of the writer.
    pub(super) fn finish(mut self) -> io::Result<W> {
        let whole = self.buffer.len().next_multiple_of(RECORD_BYTES);
        self.buffer.resize(whole, 0);
        self.write_records()?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn write_records(&mut self) -> io::Result<()> {
        debug_assert!(
            self.buffer.len().is_multiple_of(RECORD_BYTES),
            "only whole records are written"
        );
        self.to.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

impl<W: Write> Write for RecordWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = RECORDS_MAX * RECORD_BYTES - self.buffer.len();
        let taken = &bytes[..bytes.len().min(room)];
        self.buffer.extend_from_slice(taken);
        if taken.len() == room {
            self.write_records()?;
        }
        Ok(taken.len())
    }

    /// Does nothing: a part of a record is not handed on.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes the length of each write.
    #[derive(Default)]
    struct Noted {
        bytes: Vec<u8>,
        lengths: Vec<usize>,
    }

    impl Write for Noted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.bytes.extend_from_slice(bytes);
            self.lengths.push(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn records_are_whole_whatever_is_written() {
        let mut writer = RecordWriter::new(Noted::default());
        let mut expected = Vec::new();
        for (count, len) in [512, 9, 13, 23, 300_000, 0, 40_000, 1]
            .into_iter()
            .enumerate()
        {
            let piece = vec![count as u8 + 1; len];
            writer.write_all(&piece).unwrap();
            writer.flush().unwrap();
            expected.extend(piece);
        }
        let noted = writer.finish().unwrap();
        assert!(noted.lengths.len() > 1, "it is not kept back as a whole");
        for length in &noted.lengths {
            assert_eq!(length % RECORD_BYTES, 0, "{:?}", noted.lengths);
        }
        let (written, padding) = noted.bytes.split_at(expected.len());
        assert_eq!(written, expected);
        assert!(padding.len() < RECORD_BYTES && padding.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn an_archive_that_was_cut_gets_no_end() {
        let mut noted = Noted::default();
        let mut writer = RecordWriter::new(&mut noted);
        writer.write_all(&[1; 1000]).unwrap();
        drop(writer);
        assert!(noted.lengths.is_empty(), "{:?}", noted.lengths);
    }
}
