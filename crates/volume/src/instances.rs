//! Several engines on one volume. Each instance has a version log and a backup log of its own; zones
//! and space, the generation and the poison are one for all.
//!
//! The first instance, `main`, is as old as the volume and has the logs before the zones. The logs of
//! a further one lie in zones that are wholly theirs, side by side. Its record stands in both copies
//! of the superblock, so that it is there or not with one write of a copy:
//!
//! 1. To create one, its zones are taken, written with zeros, and given an empty version; sync. Then
//!    the record is written in both copies, each synced.
//! 2. To remove one, its logs are given up, so that nothing is written to them any more, and its record
//!    is taken out of both copies, each synced. Then the zones of its logs are free.
//! 3. To move the logs of one (a volume that shrinks may cut off where they are), both are copied byte
//!    by byte while nothing is appended; sync; then the record, as above. No position in a log depends
//!    on where the log lies.
//!
//! A crash between the two copies leaves either; both are right, since until the second is durable the
//! zones of both stay taken.
//!
//! Locks: `version log`, then `backup log`, then the superblock.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section 3.6.

use crate::mkfs::{self, PAGE, VERSION_LOG_BYTES, zero};
use crate::superblocks;
use crate::version_log::{VersionLog, recover};
use crate::volume::Shared;
use crate::window::usize_from;
use crate::{BackupLog, Class, Durability, Extent, Opened, Shrinking, Stream, Volume, VolumeError};
use stitch_base::Generation;
use stitch_base::sync::Arc;
use stitch_device::Device;
use stitch_format::instance::{FIRST, INSTANCES_MAX, Instance, is_name};
use stitch_format::superblock::{Closed, FEATURE_INSTANCES, LogAreas, Superblock};

/// Shortest backup log of a further instance, in bytes.
const BACKUP_LOG_BYTES_MIN: u64 = 2 << 20;
/// Streams of an instance.
const STREAMS: u8 = 8;
const _: () = assert!(
    (INSTANCES_MAX + 1) * STREAMS as usize <= 256,
    "streams have numbers"
);
/// How much of a log is copied at once, in bytes.
const COPY_BYTES: u64 = 1 << 20;

/// Lengths of the logs of a new instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceOptions {
    /// Length of the version log; by default that of the first instance.
    pub version_log_bytes: Option<u64>,
    /// Length of the backup log; by default that of the first instance. What is left of the last
    /// zone is added.
    pub backup_log_bytes: Option<u64>,
}

/// All instances of a volume, the first one first.
pub(crate) fn records(superblock: &Superblock) -> Vec<Instance> {
    let first = Instance {
        name: FIRST.to_owned(),
        logs: superblock.areas.logs(),
        closed: superblock.closed,
    };
    let further = superblock.instances.iter().cloned();
    std::iter::once(first).chain(further).collect()
}

/// An instance whose live version was found.
#[derive(Debug)]
pub(crate) struct Found {
    record: Instance,
    recovered: recover::Recovered,
    /// Nothing was written since it was closed.
    is_closed: bool,
}

impl Found {
    /// Highest generation that wrote the live version.
    pub(crate) const fn generation(&self) -> Generation {
        self.recovered.generation
    }

    /// Reads the live version of an instance.
    pub(crate) fn read(
        device: &dyn Device,
        superblock: &Superblock,
        record: Instance,
    ) -> Result<Self, VolumeError> {
        let read = || {
            let found = recover::recover(device, superblock.salt, &record.logs)?;
            recover::check_end(&record.closed, &record.logs, &found.state)?;
            Ok(found)
        };
        let recovered = read().map_err(|error| of_instance(error, &record.name))?;
        let is_closed = record.closed.generation == superblock.generation;
        Ok(Self {
            record,
            recovered,
            is_closed,
        })
    }

    /// Writes anew what was damaged and is known all the same.
    pub(crate) fn mend(&self, device: &dyn Device, salt: u64) -> Result<(), VolumeError> {
        match self.recovered.origin_damage {
            None => Ok(()),
            Some(_) => recover::mend_origin(device, salt, &self.record.logs),
        }
    }

    /// The instance, open.
    pub(crate) fn open(self, shared: &Arc<Shared>, durability: Durability, number: u8) -> Opened {
        let state = self.recovered.state;
        let log_start = state.log_start;
        let log = BackupLog::new(
            Arc::clone(&shared.core),
            &self.record.logs,
            durability,
            (&state, self.recovered.generation),
            (&self.record.closed, self.is_closed),
        );
        let core = Arc::clone(&shared.core);
        let volume = Volume {
            name: self.record.name,
            number,
            shared: Arc::clone(shared),
            versions: VersionLog::new(core, &self.record.logs, state),
            version_log_damage: self.recovered.origin_damage,
            log,
        };
        Opened {
            volume: Arc::new(volume),
            versions: self.recovered.payloads,
            log_start,
            further: Vec::new(),
        }
    }
}

/// Says of damage whose it is, where that is not the first instance.
fn of_instance(error: VolumeError, name: &str) -> VolumeError {
    match error {
        VolumeError::Corrupt {
            what,
            at,
            expected,
            found,
        } if name != FIRST => VolumeError::Corrupt {
            what: format!("{what} of instance {name}"),
            at,
            expected,
            found,
        },
        other => other,
    }
}

/// The zones that logs take.
pub(crate) fn extents(logs: &LogAreas) -> [Extent; 2] {
    let version_log = Extent {
        addr: logs.version_log_at,
        len: logs.version_log_bytes,
    };
    let backup_log = Extent {
        addr: logs.backup_log_at,
        len: logs.backup_log_bytes,
    };
    [version_log, backup_log]
}

fn invalid<T>(reason: String) -> Result<T, VolumeError> {
    Err(VolumeError::Invalid { reason })
}

fn log_bytes(name: &str, wanted: u64, least: u64) -> Result<u64, VolumeError> {
    if wanted < least || wanted > 1 << 40 || !wanted.is_multiple_of(PAGE) {
        return invalid(format!(
            "the {name} needs a multiple of 4096 bytes, at least {least}; {wanted} were asked for"
        ));
    }
    Ok(wanted)
}

/// Lengths of the version log and the backup log of a new instance.
fn lengths(superblock: &Superblock, options: &InstanceOptions) -> Result<[u64; 2], VolumeError> {
    let first = superblock.areas.logs();
    let wanted = options.version_log_bytes.unwrap_or(first.version_log_bytes);
    let least = first.version_log_bytes.min(*VERSION_LOG_BYTES.start());
    let version_log_bytes = log_bytes("version log", wanted, least)?;
    let wanted = options.backup_log_bytes.unwrap_or(first.backup_log_bytes);
    let least = first.backup_log_bytes.min(BACKUP_LOG_BYTES_MIN);
    Ok([version_log_bytes, log_bytes("backup log", wanted, least)?])
}

impl Volume {
    /// Which instance this is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The stream of this instance for one of its streams, which are fewer than eight: instances do
    /// not fill zones together.
    ///
    /// # Panics
    /// If it has a higher number.
    #[must_use]
    pub fn stream(&self, stream: Stream) -> Stream {
        assert!(stream.0 < STREAMS, "streams are few");
        Stream(self.number * STREAMS + stream.0)
    }

    /// True for the instance that every volume has.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.name == FIRST
    }

    /// Makes another instance, which is empty. All that is in use must be known: see
    /// [`crate::Zones::adopt`].
    ///
    /// # Errors
    /// [`VolumeError::InstanceExists`]; [`VolumeError::Invalid`] for what is no name, for lengths that
    /// cannot be, and where there are as many as there can be; [`VolumeError::NoSpace`] if no free
    /// zones lie side by side; [`VolumeError::Device`], [`VolumeError::Poisoned`],
    /// [`VolumeError::ReadOnly`].
    ///
    /// # Durability
    /// It is durable when this returns. A crash leaves all of it or nothing.
    pub fn create_instance(
        &self,
        name: &str,
        options: &InstanceOptions,
    ) -> Result<Opened, VolumeError> {
        let shared = &self.shared;
        shared.core.check_writable()?;
        let mut superblock = shared.superblock.lock();
        check_new(&superblock, name)?;
        let [version_log_bytes, backup_log_bytes] = lengths(&superblock, options)?;
        let room = shared.take_zones(version_log_bytes + backup_log_bytes, Class::User)?;
        let logs = LogAreas {
            version_log_at: room.addr,
            version_log_bytes,
            backup_log_at: room.addr + version_log_bytes,
            backup_log_bytes: room.len - version_log_bytes,
        };
        let record = Instance {
            name: name.to_owned(),
            logs,
            closed: Closed::default(),
        };
        // What fails from here on fails the volume.
        let made = shared.make_empty(&logs);
        let read = || Found::read(&*shared.core.device, &superblock, record.clone());
        let found = made.and_then(|()| read()).inspect_err(|_| {
            shared.zones.free(&[room]);
        })?;
        let mut after = superblock.clone();
        after.incompatible |= FEATURE_INSTANCES;
        after.instances.push(record);
        after.instances.sort_by(|a, b| a.name.cmp(&b.name));
        superblocks::write_both(&shared.core, &after)?;
        *superblock = after;
        let count = u8::try_from(superblock.instances.len()).expect("their number was checked");
        Ok(found.open(shared, self.log.durability(), count))
    }

    /// Bytes of zones that the logs of a new instance would take.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] for lengths that cannot be.
    pub fn instance_bytes(&self, options: &InstanceOptions) -> Result<u64, VolumeError> {
        let lengths = lengths(&self.shared.superblock.lock(), options)?;
        let bytes: u64 = lengths.iter().sum();
        Ok(bytes.next_multiple_of(self.shared.zones.zone_bytes()))
    }

    /// Removes an instance with all that is in it. Nothing is written to its logs any more, and their
    /// zones are free, when this returns. What else it owns is its engine's to free; at the next open
    /// it is free in any case.
    ///
    /// # Errors
    /// [`VolumeError::NoInstance`]; [`VolumeError::Invalid`] for the first one, which stays;
    /// [`VolumeError::Device`], [`VolumeError::Poisoned`], [`VolumeError::ReadOnly`].
    ///
    /// # Durability
    /// It is gone when this returns. A crash leaves all of it or nothing.
    pub fn remove_instance(&self, instance: &Self) -> Result<(), VolumeError> {
        let shared = &self.shared;
        shared.core.check_writable()?;
        if instance.is_first() {
            return invalid(format!("{FIRST} is the instance that every store has"));
        }
        assert!(Arc::ptr_eq(shared, &instance.shared), "of this volume");
        without(&shared.superblock.lock(), &instance.name)?;
        // Before its zones are another's.
        instance.versions.give_up();
        instance.log.give_up();
        let mut superblock = shared.superblock.lock();
        let (after, gone) = without(&superblock, &instance.name)?;
        superblocks::write_both(&shared.core, &after)?;
        *superblock = after;
        shared.zones.free(&extents(&gone.logs));
        Ok(())
    }

    /// Where the logs of this instance lie now.
    pub(crate) fn log_areas(&self) -> LogAreas {
        let superblock = self.shared.superblock.lock();
        let first = superblock.areas.logs();
        let mut all = superblock.instances.iter();
        let found = all.find(|instance| instance.name == self.name);
        found.map_or(first, |instance| instance.logs)
    }

    /// Takes note of how this instance was closed. Answers what to write.
    pub(crate) fn note_closed(&self, superblock: &mut Superblock, closed: Closed) {
        if self.is_first() {
            superblock.closed = closed;
            return;
        }
        let mut all = superblock.instances.iter_mut();
        if let Some(instance) = all.find(|instance| instance.name == self.name) {
            instance.closed = closed;
        }
    }

    fn move_logs(&self, before: &LogAreas) -> Result<(), VolumeError> {
        let shared = &self.shared;
        let len_bytes = before.version_log_bytes + before.backup_log_bytes;
        let room = shared.take_zones(len_bytes, Class::Internal)?;
        let logs = LogAreas {
            version_log_at: room.addr,
            backup_log_at: room.addr + before.version_log_bytes,
            ..*before
        };
        assert_eq!(room.len, len_bytes, "logs take whole zones");
        self.versions.relocate(logs.version_log_at, || {
            self.log.relocate(&logs, || {
                let core = &shared.core;
                for (from, to) in extents(before).into_iter().zip(extents(&logs)) {
                    copy(core, from, to)?;
                }
                core.sync()?;
                let mut superblock = shared.superblock.lock();
                let mut after = superblock.clone();
                let mut all = after.instances.iter_mut();
                let record = all.find(|instance| instance.name == self.name);
                record.expect("what has logs in the zones is there").logs = logs;
                superblocks::write_both(core, &after)?;
                *superblock = after;
                Ok(())
            })
        })?;
        shared.zones.free(&extents(before));
        Ok(())
    }
}

impl Shrinking<'_> {
    /// Moves the logs of an instance, if they are in what is to be cut off. Whoever appends to them
    /// waits meanwhile.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] if no free zones lie side by side elsewhere; [`VolumeError::Device`],
    /// [`VolumeError::Poisoned`]; [`VolumeError::TooSmall`]: the shrink is off.
    ///
    /// # Durability
    /// As for [`Volume::create_instance`]: a crash leaves them in the one place or the other.
    pub fn move_logs(&mut self, instance: &Volume) -> Result<(), VolumeError> {
        let cut = self.tail()?;
        let logs = instance.log_areas();
        let is_cut = extents(&logs).iter().any(|extent| extent.end() > cut.addr);
        if !is_cut || instance.is_first() {
            return Ok(());
        }
        instance.move_logs(&logs)?;
        self.note_moved().map(drop)
    }
}

impl Shared {
    /// Takes free zones that lie side by side.
    fn take_zones(&self, bytes: u64, class: Class) -> Result<Extent, VolumeError> {
        let zone_bytes = self.zones.zone_bytes();
        let count = bytes.div_ceil(zone_bytes);
        let wanted_bytes = count * zone_bytes;
        // The promise is kept until the zones are taken.
        let promised = match class {
            Class::User => Some(self.space.reserve(wanted_bytes, class)?),
            Class::Internal => None,
        };
        let taken = self.zones.allocate_zones(count);
        drop(promised);
        taken.ok_or(VolumeError::NoZones {
            wanted_bytes,
            count,
        })
    }

    /// Gives new logs no record and an empty version.
    fn make_empty(&self, logs: &LogAreas) -> Result<(), VolumeError> {
        let core = &self.core;
        for extent in extents(logs) {
            zero(&*core.device, extent.addr, extent.len, &mut |_| ())?;
        }
        core.write(logs.version_log_at, &[&mkfs::origin(core.salt)])?;
        core.sync()
    }
}

/// What is left without an instance, and the instance.
fn without(superblock: &Superblock, name: &str) -> Result<(Superblock, Instance), VolumeError> {
    let mut after = superblock.clone();
    let mut all = after.instances.iter();
    let Some(index) = all.position(|instance| instance.name == name) else {
        let name = name.to_owned();
        return Err(VolumeError::NoInstance { name });
    };
    let gone = after.instances.remove(index);
    if after.instances.is_empty() {
        after.incompatible &= !FEATURE_INSTANCES;
    }
    Ok((after, gone))
}

/// Refuses a name that is none, is taken, or is one too many.
fn check_new(superblock: &Superblock, name: &str) -> Result<(), VolumeError> {
    if name == FIRST || superblock.instances.iter().any(|i| i.name == name) {
        let name = name.to_owned();
        return Err(VolumeError::InstanceExists { name });
    }
    if !is_name(name) {
        return invalid(format!(
            "{name:?} is no name for an instance: use 1 to 32 letters, digits, and, but for the \
             first, any of - _ ."
        ));
    }
    if superblock.instances.len() == INSTANCES_MAX {
        return invalid(format!(
            "a store has {INSTANCES_MAX} instances besides {FIRST} at most; remove one"
        ));
    }
    Ok(())
}

fn copy(core: &crate::core::Core, from: Extent, to: Extent) -> Result<(), VolumeError> {
    let mut buffer = vec![0; usize_from(COPY_BYTES.min(from.len))];
    let mut done = 0;
    while done < from.len {
        let piece = &mut buffer[..usize_from(COPY_BYTES.min(from.len - done))];
        core.read(from.addr + done, piece)?;
        core.write(to.addr + done, &[&*piece])?;
        done += piece.len() as u64;
    }
    Ok(())
}
