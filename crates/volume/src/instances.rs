//! Instances: several engines on one volume. Each has a version log and a backup log of its own.
//! All share zones, space, generation and poison flag.
//!
//! The first instance, `main`, exists from `mkfs` on and has its logs before the zones. The logs of
//! a further instance take adjacent zones of their own. Its record stands in both copies of the
//! superblock, so that one write of a copy adds or removes it:
//!
//! 1. To create an instance, its zones are allocated, zeroed, and given an empty version; sync.
//!    Then its record is written to both copies, each synced.
//! 2. To remove an instance, its logs are detached, so that nothing more is written to them. Its
//!    record is removed from both copies, each synced. Then the zones of its logs are freed.
//! 3. To move the logs of an instance out of the end of a shrinking volume, both are copied byte by
//!    byte while nothing is appended; sync. Then its record is written as above. No position in a
//!    log depends on the log's offset.
//!
//! After a crash between the two copies, either may be used: the zones of both stay allocated until
//! the second copy is durable.
//!
//! Locks: `version log`, then `backup log`, then the superblock.
//!
//! Paper: Mei et al., "LSM-Tree Managed Storage for Large-Scale Key-Value Store", 2019, section
//! 3.6.

use crate::error::invalid;
use crate::mkfs::{self, VERSION_LOG_BYTES, checked_log_bytes, zero};
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
/// Number of write streams of an instance.
const STREAMS: u8 = 8;
const _: () = assert!(
    (INSTANCES_MAX + 1) * STREAMS as usize <= 256,
    "streams have numbers"
);
/// Length of the copied chunks, in bytes.
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

/// Returns the records of all instances, the first instance first.
pub(crate) fn records(superblock: &Superblock) -> Vec<Instance> {
    let first = Instance {
        name: FIRST.to_owned(),
        logs: superblock.areas.logs(),
        closed: superblock.closed,
    };
    let further = superblock.instances.iter().cloned();
    let all: Vec<Instance> = std::iter::once(first).chain(further).collect();
    debug_assert!(
        all[1..].is_sorted_by(|a, b| a.name < b.name),
        "names are unique, and in order"
    );
    all
}

/// An instance whose live version was found.
#[derive(Debug)]
pub(crate) struct FoundInstance {
    record: Instance,
    recovered: recover::Recovered,
    /// True if nothing was written since it was closed.
    is_closed: bool,
}

impl FoundInstance {
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

    /// Rewrites damaged parts whose contents are known.
    pub(crate) fn mend(&self, device: &dyn Device, salt: u64) -> Result<(), VolumeError> {
        match self.recovered.origin_damage {
            None => Ok(()),
            Some(_) => recover::mend_origin(device, salt, &self.record.logs),
        }
    }

    /// Opens the instance.
    pub(crate) fn open(self, shared: &Arc<Shared>, durability: Durability, number: u8) -> Opened {
        let state = self.recovered.state;
        let log_start = state.log_start;
        assert!(
            self.recovered.generation <= shared.core.generation,
            "this life is the newest"
        );
        assert_eq!(
            number == 0,
            self.record.name == FIRST,
            "the first instance is opened first"
        );
        debug_assert!(
            (number as usize) <= INSTANCES_MAX,
            "instances have streams of their own"
        );
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

/// Adds the instance's name to an error about damage, except for the first instance.
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

/// Returns the extents of both logs.
pub(crate) fn extents(logs: &LogAreas) -> [Extent; 2] {
    debug_assert!(
        logs.version_log_bytes > 0 && logs.backup_log_bytes > 0,
        "logs are not empty"
    );
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

/// Returns the lengths of the version log and the backup log of a new instance.
fn lengths(superblock: &Superblock, options: &InstanceOptions) -> Result<[u64; 2], VolumeError> {
    let first = superblock.areas.logs();
    let wanted = options.version_log_bytes.unwrap_or(first.version_log_bytes);
    let least = first.version_log_bytes.min(*VERSION_LOG_BYTES.start());
    let version_log_bytes = checked_log_bytes("version log", wanted, least)?;
    let wanted = options.backup_log_bytes.unwrap_or(first.backup_log_bytes);
    let least = first.backup_log_bytes.min(BACKUP_LOG_BYTES_MIN);
    let backup_log_bytes = checked_log_bytes("backup log", wanted, least)?;
    Ok([version_log_bytes, backup_log_bytes])
}

impl Volume {
    /// Returns the name of this instance.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Maps a stream number below 8 to a stream of this instance: instances do not share open
    /// zones.
    ///
    /// # Panics
    /// If the number is 8 or higher.
    #[must_use]
    pub fn stream(&self, stream: Stream) -> Stream {
        assert!(stream.0 < STREAMS, "streams are few");
        let own = Stream(self.number * STREAMS + stream.0);
        debug_assert_eq!(
            own.0 / STREAMS,
            self.number,
            "instances have streams of their own"
        );
        own
    }

    /// Reports whether this is the first instance, which every volume has.
    #[must_use]
    pub fn is_first(&self) -> bool {
        debug_assert_eq!(self.name == FIRST, self.number == 0, "it was opened first");
        self.name == FIRST
    }

    /// Creates another, empty instance. All live extents must be known before: see
    /// [`crate::Zones::adopt`].
    ///
    /// # Errors
    /// [`VolumeError::InstanceExists`]; [`VolumeError::Invalid`] if the name or a length is
    /// invalid, or the volume has the most instances possible; [`VolumeError::NoSpace`] if there
    /// are not enough adjacent free zones; [`VolumeError::Device`], [`VolumeError::Poisoned`],
    /// [`VolumeError::ReadOnly`].
    ///
    /// # Durability
    /// The instance is durable when this returns. A crash leaves all of it or nothing.
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
        debug_assert!(
            room.len >= version_log_bytes + backup_log_bytes,
            "both logs lie in the zones that were taken"
        );
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
        // A failure from here on poisons the volume.
        let made = shared.make_empty(&logs);
        let read = || FoundInstance::read(&*shared.core.device, &superblock, record.clone());
        let found = made.and_then(|()| read()).inspect_err(|_| {
            shared.zones.free(&[room]);
        })?;
        let mut after = superblock.clone();
        after.incompatible |= FEATURE_INSTANCES;
        after.instances.push(record);
        debug_assert!(
            after.instances.len() <= INSTANCES_MAX,
            "their number was checked"
        );
        after.instances.sort_by(|a, b| a.name.cmp(&b.name));
        debug_assert!(
            after.instances.is_sorted_by(|a, b| a.name < b.name),
            "names are unique, and in order"
        );
        superblocks::write_both(&shared.core, &after)?;
        *superblock = after;
        let count = u8::try_from(superblock.instances.len()).expect("their number was checked");
        Ok(found.open(shared, self.log.durability(), count))
    }

    /// Returns the length of the zones that the logs of a new instance would take.
    ///
    /// # Errors
    /// [`VolumeError::Invalid`] if a length is invalid.
    pub fn instance_bytes(&self, options: &InstanceOptions) -> Result<u64, VolumeError> {
        let lengths = lengths(&self.shared.superblock.lock(), options)?;
        let bytes: u64 = lengths.iter().sum();
        debug_assert!(bytes > 0, "logs are not empty");
        Ok(bytes.next_multiple_of(self.shared.zones.zone_bytes()))
    }

    /// Removes an instance and its logs. When this returns, nothing more is written to its logs,
    /// and their zones are free. Its engine frees the other extents; those left over are free at
    /// the next open.
    ///
    /// # Errors
    /// [`VolumeError::NoInstance`]; [`VolumeError::Invalid`] for the first one, which stays;
    /// [`VolumeError::Device`], [`VolumeError::Poisoned`], [`VolumeError::ReadOnly`].
    ///
    /// # Durability
    /// The removal is durable when this returns. A crash leaves the instance whole or removes it.
    pub fn remove_instance(&self, instance: &Self) -> Result<(), VolumeError> {
        let shared = &self.shared;
        shared.core.check_writable()?;
        if instance.is_first() {
            return invalid(format!("{FIRST} is the instance that every store has"));
        }
        assert!(Arc::ptr_eq(shared, &instance.shared), "of this volume");
        without(&shared.superblock.lock(), &instance.name)?;
        // Before its zones can be allocated again.
        instance.versions.give_up();
        instance.log.give_up();
        let mut superblock = shared.superblock.lock();
        let (after, gone) = without(&superblock, &instance.name)?;
        superblocks::write_both(&shared.core, &after)?;
        *superblock = after;
        debug_assert!(
            extents(&gone.logs)
                .iter()
                .all(|log| self.is_in_zones(log.addr, log.len)),
            "the logs of a further instance lie in the zones"
        );
        shared.zones.free(&extents(&gone.logs));
        Ok(())
    }

    /// Returns the areas of this instance's logs.
    pub(crate) fn log_areas(&self) -> LogAreas {
        let superblock = self.shared.superblock.lock();
        let first = superblock.areas.logs();
        let mut all = superblock.instances.iter();
        let found = all.find(|instance| instance.name == self.name);
        debug_assert!(
            found.is_none() || !self.is_first(),
            "the first instance has its logs before the zones"
        );
        found.map_or(first, |instance| instance.logs)
    }

    /// Adds to `superblock` how this instance was closed.
    pub(crate) fn note_closed(&self, superblock: &mut Superblock, closed: Closed) {
        debug_assert_eq!(closed.generation, superblock.generation, "of this life");
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
    /// Moves the logs of an instance if they lie in the part to be cut off. Appends wait meanwhile.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] if there are not enough adjacent free zones elsewhere;
    /// [`VolumeError::TooSmall`] if the shrink was cancelled; [`VolumeError::Device`],
    /// [`VolumeError::Poisoned`].
    ///
    /// # Durability
    /// A crash leaves the logs at one offset or the other, as for [`Volume::create_instance`].
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
    /// Allocates adjacent free zones.
    fn take_zones(&self, bytes: u64, class: Class) -> Result<Extent, VolumeError> {
        let zone_bytes = self.zones.zone_bytes();
        let count = bytes.div_ceil(zone_bytes);
        assert!(count > 0, "logs are not empty");
        let wanted_bytes = count * zone_bytes;
        // The reservation is held until the zones are allocated.
        let promised = match class {
            Class::User => Some(self.space.reserve(wanted_bytes, class)?),
            Class::Internal => None,
        };
        let taken = self.zones.allocate_zones(count);
        debug_assert!(
            taken.is_none_or(|room| room.len == wanted_bytes),
            "whole zones"
        );
        drop(promised);
        taken.ok_or(VolumeError::NoZones {
            wanted_bytes,
            count,
        })
    }

    /// Initialises new logs: no record, and an empty version.
    fn make_empty(&self, logs: &LogAreas) -> Result<(), VolumeError> {
        let core = &self.core;
        debug_assert_ne!(
            logs.version_log_at, core.areas.version_log_at,
            "the first instance keeps its version"
        );
        for extent in extents(logs) {
            zero(&*core.device, extent.addr, extent.len, &mut |_| ())?;
        }
        core.write(logs.version_log_at, &[&mkfs::origin(core.salt)])?;
        core.sync()
    }
}

/// Returns the superblock without an instance, and the instance.
fn without(superblock: &Superblock, name: &str) -> Result<(Superblock, Instance), VolumeError> {
    let mut after = superblock.clone();
    let mut all = after.instances.iter();
    let Some(index) = all.position(|instance| instance.name == name) else {
        let name = name.to_owned();
        return Err(VolumeError::NoInstance { name });
    };
    let gone = after.instances.remove(index);
    debug_assert_eq!(
        after.instances.len() + 1,
        superblock.instances.len(),
        "one is gone"
    );
    if after.instances.is_empty() {
        after.incompatible &= !FEATURE_INSTANCES;
    }
    Ok((after, gone))
}

/// Checks that a name is valid and new, and that there is room for another instance.
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
    assert_eq!(from.len, to.len, "a log keeps its length");
    assert!(
        from.end() <= to.addr || to.end() <= from.addr,
        "the copy is apart"
    );
    let mut buffer = vec![0; usize_from(COPY_BYTES.min(from.len))];
    let mut done = 0;
    while done < from.len {
        let piece = &mut buffer[..usize_from(COPY_BYTES.min(from.len - done))];
        core.read(from.addr + done, piece)?;
        core.write(to.addr + done, &[&*piece])?;
        done += piece.len() as u64;
    }
    debug_assert_eq!(done, from.len, "all of it is copied");
    Ok(())
}
