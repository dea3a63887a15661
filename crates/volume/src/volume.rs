//! An open volume: its logs, its zones, its space, and blocks by address.

use crate::core::Core;
use crate::instances::{self, FoundInstance};
use crate::mkfs::{self, FormatOptions};
use crate::signature::{self, Signature};
use crate::superblocks;
use crate::version_log::{VersionChange, VersionLog};
use crate::window::usize_from;
use crate::{BackupLog, Durability, Extent, PAGE_BYTES, Space, VolumeError, Zones};
use bytes::Bytes;
use stitch_base::sync::atomic::AtomicBool;
use stitch_base::sync::{Arc, Mutex};
use stitch_base::{Generation, Lsn};
use stitch_device::{Device, Wanted};
use stitch_format::block::{self, BlockHeader, BlockKind};
use stitch_format::instance::INSTANCES_MAX;
use stitch_format::superblock::{Closed, FEATURES_INCOMPATIBLE, Superblock, VERSION};
use stitch_format::version_object::ObjectKind;
use stitch_format::vt_index;

/// How to open a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// True to write nothing at all.
    pub read_only: bool,
    /// The failure that an acknowledged append to the backup log survives.
    pub durability: Durability,
    /// True to discard zones that become free ([`Volume::discard_freed`]).
    pub discard: bool,
}

/// An open volume and its live version.
#[derive(Debug)]
pub struct Opened {
    /// The volume.
    pub volume: Arc<Volume>,
    /// The payloads of the commits that make up the live version: the base, then its deltas, in
    /// order. Empty on a fresh volume. Before the engine's first base there are only deltas.
    pub versions: Vec<Vec<u8>>,
    /// Start of the live records of the backup log: replay from here.
    pub log_start: Lsn,
    /// The further instances; only the first instance has any. Nothing may be allocated before
    /// [`Zones::adopt`] knows the extents of all of them.
    pub further: Vec<Opened>,
}

/// A block after its check.
#[derive(Debug)]
pub struct Block {
    header: BlockHeader,
    bytes: Vec<u8>,
}

impl Block {
    /// Asserts that the bytes are those that the header promises.
    fn assert_invariants(&self) {
        debug_assert!(
            (self.bytes.len() as u64).is_multiple_of(block::ALIGN),
            "a block is padded"
        );
        debug_assert_eq!(
            self.bytes.len() as u64,
            block::block_bytes(u64::from(self.header.payload_len)),
            "a block is no longer than its payload needs"
        );
    }

    /// The header of the block.
    #[must_use]
    pub const fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// The payload of the block.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.assert_invariants();
        &self.bytes[block::HEADER_BYTES..][..self.header.payload_len as usize]
    }

    /// Returns the payload without copying the header.
    #[must_use]
    pub fn into_payload(mut self) -> Vec<u8> {
        self.assert_invariants();
        self.bytes
            .truncate(block::HEADER_BYTES + self.header.payload_len as usize);
        self.bytes.drain(..block::HEADER_BYTES);
        debug_assert_eq!(
            self.bytes.len(),
            self.header.payload_len as usize,
            "the payload alone"
        );
        self.bytes
    }
}

/// An open volume from the view of one of its instances. Threads share it.
#[derive(Debug)]
pub struct Volume {
    pub(crate) name: String,
    /// Number of instances that were opened before this one.
    pub(crate) number: u8,
    pub(crate) shared: Arc<Shared>,
    pub(crate) versions: VersionLog,
    pub(crate) version_log_damage: Option<VolumeError>,
    pub(crate) log: BackupLog,
}

/// State that all instances of an open volume share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) zones: Arc<Zones>,
    pub(crate) space: Space,
    superblock_damage: Option<VolumeError>,
    /// True if freed zones are discarded. Cleared when a discard fails.
    pub(crate) discards: AtomicBool,
}

impl Volume {
    /// Formats a volume on a device, whatever it held; see [`Self::probe`] first. `progress` is
    /// called with bytes done and bytes to do.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] if the device is too small or an option is out of its range;
    /// [`VolumeError::Device`].
    ///
    /// # Durability
    /// The volume is durable when this returns; a crash before leaves none.
    pub fn format(
        device: &dyn Device,
        options: &FormatOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), VolumeError> {
        mkfs::format(device, options, progress)
    }

    /// Recognises the format that a device holds already, if it is known.
    ///
    /// # Errors
    /// [`VolumeError::Device`] if it cannot be read.
    pub fn probe(device: &dyn Device) -> Result<Option<Signature>, VolumeError> {
        signature::probe(device)
    }

    /// Reads the superblock of a device, without opening the volume.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn identify(device: &dyn Device) -> Result<Superblock, VolumeError> {
        Ok(superblocks::read(device)?.superblock)
    }

    /// Opens a volume: finds the live versions of all its instances and, unless for reading only,
    /// makes a new generation durable.
    ///
    /// # Errors
    /// [`VolumeError::NotAVolume`], [`VolumeError::Unsupported`], [`VolumeError::Corrupt`],
    /// [`VolumeError::Device`].
    pub fn open(device: Arc<dyn Device>, options: &OpenOptions) -> Result<Opened, VolumeError> {
        let name = device.geometry().name;
        let mut chosen = superblocks::read(&*device)?;
        if !options.read_only {
            superblocks::check_writable(&name, &chosen.superblock)?;
        }
        let mut found = Vec::new();
        for record in instances::records(&chosen.superblock) {
            found.push(FoundInstance::read(&*device, &chosen.superblock, record)?);
        }
        let written = found.iter().map(FoundInstance::generation);
        let seen = written.fold(chosen.superblock.generation, Generation::max);
        debug_assert!(
            !found.is_empty() && found.len() <= INSTANCES_MAX + 1,
            "a volume has a first instance, and few further ones"
        );
        let mut generation = seen;
        if !options.read_only {
            generation = seen.next();
            if generation.0 >= u64::from(u32::MAX) {
                let reason = "was opened too often: copy it to a new one".to_owned();
                return Err(VolumeError::Unsupported { name, reason });
            }
            superblocks::write(&*device, &mut chosen, generation)?;
            for instance in &found {
                instance.mend(&*device, chosen.superblock.salt)?;
            }
        }
        let superblock = chosen.superblock;
        assert_eq!(
            generation > seen,
            !options.read_only,
            "each open for writing has a generation of its own"
        );
        let areas = superblock.areas;
        let core = Core::new(device, &superblock, generation, options.read_only);
        let zones = Arc::new(Zones::new(&areas));
        let logs = superblock.instances.iter().map(|instance| &instance.logs);
        let logs: Vec<Extent> = logs.flat_map(instances::extents).collect();
        zones.adopt(&logs)?;
        let shared = Arc::new(Shared {
            core: Arc::new(core),
            space: Space::new(Arc::clone(&zones)),
            zones,
            superblock: Mutex::new(superblock),
            superblock_damage: chosen.damage,
            discards: AtomicBool::new(options.discard && !options.read_only),
        });
        let all = (0u8..).zip(found);
        let mut all = all.map(|(number, found)| found.open(&shared, options.durability, number));
        let mut first = all.next().expect("a volume has a first instance");
        first.further = all.collect();
        debug_assert!(first.volume.is_first(), "the others are further ones");
        Ok(first)
    }

    /// Returns the superblock: identity, label and current geometry.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        self.shared.superblock.lock().clone()
    }

    /// The damage of one copy of the superblock when the volume was opened. Opening for writing has
    /// repaired it.
    #[must_use]
    pub fn superblock_damage(&self) -> Option<&VolumeError> {
        self.shared.superblock_damage.as_ref()
    }

    /// The damage of the version log's first object when the volume was opened. Nothing is lost by
    /// it. Opening for writing has repaired it.
    #[must_use]
    pub const fn version_log_damage(&self) -> Option<&VolumeError> {
        self.version_log_damage.as_ref()
    }

    /// The number of times that the volume was opened for writing.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.shared.core.generation
    }

    /// Reports whether the volume is open for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.shared.core.is_read_only
    }

    /// Reports whether an earlier write or sync failed.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.shared.core.is_poisoned()
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.core.device
    }

    /// The backup log.
    #[must_use]
    pub const fn log(&self) -> &BackupLog {
        &self.log
    }

    /// The zones and the online-map.
    #[must_use]
    pub fn zones(&self) -> &Zones {
        &self.shared.zones
    }

    /// Space reservations.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.shared.space
    }

    /// Makes everything durable that was written before the call, tables and log.
    ///
    /// # Errors
    /// [`VolumeError::Device`]; the volume is poisoned then.
    pub fn sync(&self) -> Result<(), VolumeError> {
        if self.shared.core.is_read_only {
            return Ok(());
        }
        self.log.barrier()
    }

    /// Makes everything durable and records the ends of the logs, so that the next open can tell a
    /// damaged log from one that a crash cut. Writing may continue afterwards, but is not covered
    /// by that record.
    ///
    /// # Errors
    /// [`VolumeError::Device`], [`VolumeError::Poisoned`], [`VolumeError::ReadOnly`].
    pub fn close(&self) -> Result<(), VolumeError> {
        self.shared.core.check_writable()?;
        self.log.barrier()?;
        let closed = Closed {
            version_end: self.versions.end(),
            log_end: self.log.durable_end(),
            generation: self.shared.core.generation,
        };
        let mut superblock = self.shared.superblock.lock();
        self.note_closed(&mut superblock, closed);
        superblocks::write_closed(&*self.shared.core.device, &superblock)
    }

    /// Raises the format version, so that programs without support for `version` refuse the volume.
    /// Call it before writing anything that they cannot read.
    ///
    /// # Errors
    /// [`VolumeError::Device`]; the volume is poisoned then.
    ///
    /// # Durability
    /// Durable when this returns. A crash before leaves the old or the raised version.
    ///
    /// # Panics
    /// If this program does not support the version either.
    pub fn require_format(&self, version: (u16, u16)) -> Result<(), VolumeError> {
        assert!(version <= VERSION, "what is written is known");
        let mut superblock = self.shared.superblock.lock();
        let known = [superblock.version, superblock.readable];
        let raised = known.map(|known| known.max(version));
        debug_assert!(
            raised[1] <= raised[0],
            "what reads it is not newer than what wrote it"
        );
        if raised == known {
            return Ok(());
        }
        [superblock.version, superblock.readable] = raised;
        debug_assert!(
            superblock.readable >= version,
            "what does not know the version refuses the volume"
        );
        superblocks::write_both(&self.shared.core, &superblock)
    }

    /// Makes sure that programs which do not know a feature refuse the volume: to be called before
    /// anything is written that they could not read.
    ///
    /// # Errors
    /// [`VolumeError::Device`]; then the volume is poisoned.
    ///
    /// # Durability
    /// On the medium when this returns. A crash before leaves the features as they were, or raised.
    ///
    /// # Panics
    /// Panics if this program does not know the feature either.
    pub fn require_feature(&self, incompatible: u64) -> Result<(), VolumeError> {
        let is_known = incompatible & !FEATURES_INCOMPATIBLE == 0;
        assert!(is_known, "what is written is known");
        let mut superblock = self.shared.superblock.lock();
        if superblock.incompatible & incompatible == incompatible {
            return Ok(());
        }
        superblock.incompatible |= incompatible;
        debug_assert_eq!(
            superblock.incompatible & !FEATURES_INCOMPATIBLE,
            0,
            "this program can open the volume again"
        );
        superblocks::write_both(&self.shared.core, &superblock)
    }

    /// Commits a delta. Live records of the backup log start at `log_start` from now on: everything
    /// before it is in tables.
    ///
    /// # Errors
    /// [`VolumeError::VersionLogFull`]: commit a base; [`VolumeError::Poisoned`],
    /// [`VolumeError::ReadOnly`], [`VolumeError::Device`].
    ///
    /// # Durability
    /// Earlier writes to the device are durable before the change is, and the change is durable
    /// when this returns. A crash leaves the old version or the new one.
    ///
    /// # Panics
    /// If `log_start` goes back or is beyond the log's end.
    pub fn commit_delta(&self, edit: &[u8], log_start: Lsn) -> Result<(), VolumeError> {
        self.versions
            .commit(ObjectKind::Delta, edit, log_start, &self.log)
    }

    /// Commits a base (a trim): the deltas before it are no longer needed.
    ///
    /// # Errors
    /// Those of [`Self::commit_delta`]; a base of at most [`Self::base_bytes_max`] always fits.
    ///
    /// # Durability
    /// As for [`Self::commit_delta`].
    ///
    /// # Panics
    /// As for [`Self::commit_delta`].
    pub fn commit_base(&self, base: &[u8], log_start: Lsn) -> Result<(), VolumeError> {
        self.versions
            .commit(ObjectKind::Base, base, log_start, &self.log)
    }

    /// Commits a change of the version, as a delta or as a base. Refuses it before anything is
    /// written if the version would not fit afterwards. A version of at most
    /// [`Self::base_bytes_max`] always fits. So does one that is no longer than the last, in a log
    /// that accepted only such changes.
    ///
    /// # Errors
    /// [`VolumeError::VersionLogFull`]: nothing has changed. Others as [`Self::commit_delta`].
    ///
    /// # Durability
    /// As for [`Self::commit_delta`].
    ///
    /// # Panics
    /// As for [`Self::commit_delta`].
    pub fn commit_change(
        &self,
        change: &VersionChange<'_>,
        log_start: Lsn,
    ) -> Result<(), VolumeError> {
        self.versions.commit_change(change, log_start, &self.log)
    }

    /// Reports whether the engine should commit a base soon, because recovery gets long or space
    /// short.
    #[must_use]
    pub fn version_log_wants_base(&self) -> bool {
        self.versions.wants_base()
    }

    /// Returns the length of the longest base that always fits, in bytes.
    #[must_use]
    pub fn base_bytes_max(&self) -> u64 {
        self.versions.base_bytes_max()
    }

    /// Returns the length of the live base and its deltas in the version log.
    #[must_use]
    pub fn version_log_live_bytes(&self) -> u64 {
        self.versions.live_bytes()
    }

    /// Makes a block of `buffer`, which holds [`block::HEADER_BYTES`] arbitrary bytes and then the
    /// payload: fills in the header and pads with zeros to a multiple of 512. `addr` is the offset
    /// at which it will be written.
    ///
    /// # Panics
    /// If the buffer is shorter than a header or the payload too long.
    pub fn seal_block(&self, buffer: &mut Vec<u8>, kind: BlockKind, flags: u8, addr: u64) {
        assert!(buffer.len() >= block::HEADER_BYTES, "room for the header");
        let payload_len = buffer.len() - block::HEADER_BYTES;
        assert!(
            payload_len <= block::PAYLOAD_BYTES_MAX,
            "a block is bounded"
        );
        let padded = usize_from(block::block_bytes(payload_len as u64));
        buffer.resize(padded, 0);
        self.seal_block_in(buffer, payload_len, kind, flags, addr);
    }

    /// Seals a block inside a larger buffer, as [`Self::seal_block`] does. `block` is exactly the
    /// padded block, and its padding is zero.
    ///
    /// # Panics
    /// If the length of `block` is not that of the padded block.
    pub fn seal_block_in(
        &self,
        block: &mut [u8],
        payload_len: usize,
        kind: BlockKind,
        flags: u8,
        addr: u64,
    ) {
        let padded = block::block_bytes(payload_len as u64);
        assert_eq!(block.len() as u64, padded, "the block is padded");
        debug_assert!(addr.is_multiple_of(block::ALIGN), "blocks start at sectors");
        let padding = &block[block::HEADER_BYTES + payload_len..];
        debug_assert!(padding.iter().all(|&byte| byte == 0), "padding is zero");
        let header = BlockHeader {
            kind,
            flags,
            addr,
            generation: self.shared.core.generation,
            payload_len: u32::try_from(payload_len).expect("a block is bounded"),
        };
        block::seal(block, self.shared.core.salt, &header);
    }

    /// Returns the checksum of a value at `addr` without a header.
    #[must_use]
    pub fn value_checksum(&self, addr: u64, value: &[u8]) -> u32 {
        vt_index::value_checksum(self.shared.core.salt, addr, value)
    }

    /// Writes to an allocated extent. The bytes are durable after the next commit or
    /// [`Self::sync`].
    ///
    /// # Errors
    /// [`VolumeError::Device`]; [`VolumeError::Poisoned`]; [`VolumeError::ReadOnly`]. A failed
    /// write of data does not poison the volume: nothing refers to it yet.
    ///
    /// # Panics
    /// If the range does not start at a sector or is not within the zones.
    pub fn write(&self, addr: u64, pieces: &[&[u8]]) -> Result<(), VolumeError> {
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.check_write(addr, len)?;
        Ok(self.shared.core.device.write_blocks(addr, pieces)?)
    }

    /// Writes as [`Self::write`] does, possibly after the call. A late error is returned by reads
    /// of these bytes, and by the next commit or sync, which poisons the volume. See
    /// [`Device::write_behind`].
    ///
    /// # Errors
    /// As for [`Self::write`].
    ///
    /// # Panics
    /// As for [`Self::write`].
    pub fn write_behind(&self, addr: u64, bytes: &Bytes) -> Result<(), VolumeError> {
        self.check_write(addr, bytes.len() as u64)?;
        Ok(self.shared.core.device.write_behind(addr, bytes)?)
    }

    fn check_write(&self, addr: u64, len: u64) -> Result<(), VolumeError> {
        self.shared.core.check_writable()?;
        assert!(addr.is_multiple_of(block::ALIGN), "writes start at sectors");
        assert!(self.is_in_zones(addr, len), "tables are in zones");
        debug_assert!(len > 0, "something is written");
        debug_assert!(
            self.is_allocated(addr, len),
            "what is written to was allocated"
        );
        Ok(())
    }

    /// Prepares an allocated extent for small writes in order; its bytes may become zeros. See
    /// [`Device::prepare`].
    ///
    /// # Errors
    /// As for [`Self::write`].
    ///
    /// # Panics
    /// If the extent is not whole pages within the zones.
    pub fn prepare(&self, extent: Extent) -> Result<(), VolumeError> {
        let core = &self.shared.core;
        core.check_writable()?;
        let is_aligned = [extent.addr, extent.len].map(|at| at.is_multiple_of(PAGE_BYTES));
        assert_eq!(is_aligned, [true, true], "whole pages");
        assert!(
            self.is_in_zones(extent.addr, extent.len),
            "tables are in zones"
        );
        debug_assert!(
            self.is_allocated(extent.addr, extent.len),
            "no live byte becomes zero"
        );
        Ok(core.device.prepare(extent.addr, extent.len)?)
    }

    /// Returns the number of syncs of the device since it was opened.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.shared.core.syncs()
    }

    /// Reads and checks a block of `kind`: `len_bytes` at `addr`.
    ///
    /// # Errors
    /// [`VolumeError::Corrupt`] with what is wrong and where; [`VolumeError::Device`].
    pub fn read_block(
        &self,
        addr: u64,
        len_bytes: u64,
        kind: BlockKind,
    ) -> Result<Block, VolumeError> {
        self.check_place(addr, len_bytes, kind)?;
        let mut bytes = vec![0; usize_from(len_bytes)];
        self.shared.core.read(addr, &mut bytes)?;
        let (header, _) = self.check_block(&bytes, addr, kind)?;
        let block = Block { header, bytes };
        block.assert_invariants();
        Ok(block)
    }

    /// Reads raw bytes of the zones, possibly several blocks. Check each with
    /// [`Self::check_block`].
    ///
    /// # Errors
    /// [`VolumeError::Corrupt`] if the range is not within the zones; [`VolumeError::Device`].
    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        self.check_in_zones(addr, out.len() as u64)?;
        self.shared.core.read(addr, out)
    }

    /// Reads raw bytes of the zones as [`Self::read`] does, if that does not wait for the medium.
    /// Returns false if it would or if that is not known; the buffer is undefined then.
    pub fn read_resident(&self, addr: u64, out: &mut [u8]) -> bool {
        let is_inside = self.check_in_zones(addr, out.len() as u64).is_ok();
        is_inside && self.shared.core.device.read_resident(addr, out)
    }

    /// Reads several extents as [`Self::read`] does.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_each(&self, pieces: &mut [Wanted<'_>]) -> Result<(), VolumeError> {
        for piece in &*pieces {
            self.check_in_zones(piece.offset, piece.out.len() as u64)?;
        }
        Ok(self.shared.core.device.read_each(pieces)?)
    }

    /// Reads several extents that are read in order and not needed again soon.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_once(&self, pieces: &mut [Wanted<'_>]) -> Result<(), VolumeError> {
        for piece in &*pieces {
            self.check_in_zones(piece.offset, piece.out.len() as u64)?;
        }
        Ok(self.shared.core.device.read_once(pieces)?)
    }

    /// Hints that bytes of the zones will be read soon. Returns at once, and guarantees nothing.
    pub fn prefetch(&self, addr: u64, len_bytes: u64) {
        if self.check_in_zones(addr, len_bytes).is_ok() {
            self.shared.core.device.prefetch(addr, len_bytes);
        }
    }

    fn check_in_zones(&self, addr: u64, len_bytes: u64) -> Result<(), VolumeError> {
        match self.is_in_zones(addr, len_bytes) {
            true => Ok(()),
            false => Err(outside("blocks", addr, len_bytes)),
        }
    }

    /// Checks a block that was read from `addr`: `bytes` is exactly the padded block.
    ///
    /// # Errors
    /// [`VolumeError::Corrupt`] with what is wrong and where.
    pub fn check_block<'a>(
        &self,
        bytes: &'a [u8],
        addr: u64,
        kind: BlockKind,
    ) -> Result<(BlockHeader, &'a [u8]), VolumeError> {
        let opened = block::open(bytes, self.shared.core.salt, kind, addr);
        let (header, payload) =
            opened.map_err(|error| VolumeError::from_format(kind.name(), addr, error))?;
        debug_assert_eq!((header.kind, header.addr), (kind, addr), "as it was sealed");
        debug_assert_eq!(
            payload.len(),
            header.payload_len as usize,
            "as much as was sealed"
        );
        Ok((header, payload))
    }

    /// Reports whether all pages of these bytes are allocated. For assertions.
    fn is_allocated(&self, addr: u64, len: u64) -> bool {
        let end = (addr + len).next_multiple_of(block::ALIGN);
        let len = end - addr;
        self.shared.zones.is_live(Extent { addr, len })
    }

    pub(crate) fn is_in_zones(&self, addr: u64, len_bytes: u64) -> bool {
        let core = &self.shared.core;
        addr >= core.areas.zones_at && addr.saturating_add(len_bytes) <= core.zones_end()
    }

    fn check_place(&self, addr: u64, len_bytes: u64, kind: BlockKind) -> Result<(), VolumeError> {
        let len_max = block::block_bytes(block::PAYLOAD_BYTES_MAX as u64);
        let is_inside = self.is_in_zones(addr, len_bytes);
        let is_aligned =
            addr.is_multiple_of(block::ALIGN) && len_bytes.is_multiple_of(block::ALIGN);
        if is_inside && is_aligned && len_bytes > 0 && len_bytes <= len_max {
            return Ok(());
        }
        Err(outside(kind.name(), addr, len_bytes))
    }
}

fn outside(what: &str, addr: u64, len_bytes: u64) -> VolumeError {
    VolumeError::Corrupt {
        what: what.to_owned(),
        at: addr,
        expected: "sectors within the zones".to_owned(),
        found: format!("{len_bytes} bytes there"),
    }
}
