//! An in-memory device. It is sparse: it takes memory only for pages that were written, and a copy
//! is cheap.

use crate::counter::{Counters, Request};
use crate::pages::Pages;
use crate::{Device, DeviceCounters, DeviceError, Geometry, Wanted};
use stitch_base::sync::RwLock;
use stitch_base::sync::atomic::{AtomicU64, Ordering};

/// A device in memory. A clone is an independent device with the same bytes.
#[derive(Debug)]
pub struct MemDevice {
    len_bytes: AtomicU64,
    pages: RwLock<Pages>,
    counters: Counters,
}

const NAME: &str = "memory";

impl MemDevice {
    /// A device of zeros.
    ///
    /// # Panics
    /// If `len_bytes` is not a multiple of 4 KiB.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        Self::from_pages(len_bytes, Pages::default())
    }

    /// A device that holds `image`, with zeros up to the next multiple of 4 KiB.
    #[must_use]
    pub fn from_image(image: &[u8]) -> Self {
        let len_bytes = (image.len() as u64).next_multiple_of(crate::LEN_UNIT_BYTES);
        let mut pages = Pages::default();
        pages.write(0, image);
        Self::from_pages(len_bytes, pages)
    }

    pub(crate) fn from_pages(len_bytes: u64, pages: Pages) -> Self {
        assert!(
            len_bytes.is_multiple_of(crate::LEN_UNIT_BYTES),
            "a device's size is a multiple of 4 KiB"
        );
        Self {
            len_bytes: AtomicU64::new(len_bytes),
            pages: RwLock::new(pages),
            counters: Counters::default(),
        }
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn pages(&self) -> Pages {
        self.pages.read().clone()
    }

    /// Start and bytes of every 4 KiB page that holds anything but zeros, in order.
    #[must_use]
    pub fn written_pages(&self) -> Vec<(u64, Vec<u8>)> {
        let pages = self.pages.read();
        let used = pages
            .iter()
            .filter(|(_, bytes)| bytes.iter().any(|&b| b != 0));
        used.map(|(at, bytes)| (at, bytes.to_vec())).collect()
    }
}

impl Clone for MemDevice {
    fn clone(&self) -> Self {
        Self::from_pages(self.len_bytes(), self.pages())
    }
}

impl Device for MemDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes(),
            name: NAME.to_owned(),
            path: None,
            is_block_device: false,
        }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let request = Request::read(offset, out);
        request.check(NAME, self.len_bytes())?;
        self.pages.read().read(offset, out);
        self.counters.read(request.len_bytes);
        Ok(())
    }

    fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), DeviceError> {
        Wanted::request(pieces, NAME, self.len_bytes())?;
        let pages = self.pages.read();
        for piece in &mut *pieces {
            pages.read(piece.offset, piece.out);
        }
        self.counters.read_each(pieces);
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]]) -> Result<(), DeviceError> {
        let request = Request::write(offset, pieces);
        request.check(NAME, self.len_bytes())?;
        let mut pages = self.pages.write();
        let mut at = offset;
        for piece in pieces {
            pages.write(at, piece);
            at += piece.len() as u64;
        }
        self.counters.write(request.len_bytes);
        Ok(())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.counters.sync();
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<bool, DeviceError> {
        let request = Request::new("discard", offset, len_bytes);
        request.check(NAME, self.len_bytes())?;
        self.pages.write().fill(offset, len_bytes, 0);
        self.counters.discard(len_bytes);
        Ok(true)
    }

    fn grow(&self, _from: u64, to: u64) -> Result<(), DeviceError> {
        crate::open::check_len(NAME, to)?;
        self.len_bytes.fetch_max(to, Ordering::AcqRel);
        Ok(())
    }

    fn shrink(&self, to: u64) -> Result<(), DeviceError> {
        crate::open::check_len(NAME, to)?;
        let mut pages = self.pages.write();
        self.len_bytes.fetch_min(to, Ordering::AcqRel);
        pages.cut(to);
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_across_page_edges() {
        let device = MemDevice::new(1 << 40);
        let bytes: Vec<u8> = (0..10_000u32).map(|i| i.to_le_bytes()[0]).collect();
        device
            .write_at((1 << 39) + 4000, &[&bytes[..10], &bytes[10..]])
            .unwrap();
        let mut out = vec![0u8; bytes.len() + 2];
        device.read_at((1 << 39) + 3999, &mut out).unwrap();
        assert_eq!(out[1..=bytes.len()], bytes);
        assert_eq!((out[0], out[bytes.len() + 1]), (0, 0));
        assert_eq!(device.written_pages().len(), 4);
    }

    #[test]
    fn a_request_counts_as_one_read_for_each_separate_extent() {
        let device = MemDevice::new(65536);
        let mut out = [[0; 100]; 4];
        let offsets = [0, 100, 4096, 300];
        let pieces = out.iter_mut().zip(offsets);
        let mut pieces: Vec<_> = pieces.map(|(out, offset)| Wanted { offset, out }).collect();
        device.read_each(&mut pieces).unwrap();
        let counters = device.counters();
        assert_eq!((counters.reads, counters.read_bytes), (3, 400));
    }

    #[test]
    fn a_clone_has_its_own_bytes() {
        let device = MemDevice::new(8192);
        device.write_at(0, &[b"old"]).unwrap();
        let copy = device.clone();
        device.write_at(0, &[b"new"]).unwrap();
        let mut out = [0u8; 3];
        copy.read_at(0, &mut out).unwrap();
        assert_eq!(&out, b"old");
    }

    #[test]
    fn a_discarded_range_takes_no_room() {
        let device = MemDevice::new(16384);
        device.write_at(0, &[&[7; 16384]]).unwrap();
        device.discard(100, 10_000).unwrap();
        assert_eq!(device.written_pages().len(), 3);
        assert_eq!(device.counters().discard_bytes, 10_000);
        assert!(device.discard(16384, 1).is_err());
    }

    #[test]
    fn what_is_cut_off_comes_back_as_zeros() {
        let device = MemDevice::new(16384);
        device.write_at(0, &[&[7; 16384]]).unwrap();
        device.shrink(8192).unwrap();
        assert!(device.write_at(8192, &[&[1]]).is_err());
        device.grow(8192, 20480).unwrap();
        assert_eq!(device.geometry().len_bytes, 20480);
        let mut out = [1u8; 2];
        device.read_at(8191, &mut out).unwrap();
        assert_eq!(out, [7, 0]);
    }

    #[test]
    fn zeros_take_no_room() {
        let device = MemDevice::new(16384);
        device.write_at(100, &[&[0; 9000]]).unwrap();
        assert_eq!(device.pages().iter().count(), 0);
        device.write_at(100, &[&[1; 10]]).unwrap();
        device.write_at(100, &[&[0; 10]]).unwrap();
        assert!(device.written_pages().is_empty());
    }

    #[test]
    fn an_image_is_padded_to_whole_pages() {
        let device = MemDevice::from_image(&[1, 2, 3]);
        assert_eq!(device.geometry().len_bytes, 4096);
        let mut out = [0u8; 4];
        device.read_at(0, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 0]);
        assert!(device.read_at(4095, &mut out).is_err());
    }
}
