//! Finds the live version after a crash.
//!
//! 1. Scan from the left end of the area until an object does not follow the one before it.
//! 2. If a base was met, the last one is live, with the deltas after it.
//! 3. Otherwise all objects found are live deltas after a wrapping object, which names the position
//!    of the base in the round before: scan from there to the object that the wrapping object
//!    follows.
//! 4. The first object that mkfs writes is the same for every volume except for the salt. If it is
//!    damaged, its contents are still known: the next objects hold its checksum.

use super::LogState;
use crate::VolumeError;
use crate::mkfs;
use crate::window::Window;
use stitch_base::{Generation, Lsn};
use stitch_device::Device;
use stitch_format::log_record;
use stitch_format::superblock::{Closed, LogAreas};
use stitch_format::version_object::{ALIGN, ObjectHeader, ObjectKind};

/// Length behind the last valid object that is searched for others, in bytes.
const LOOK_AHEAD_BYTES: u64 = 512 << 10;

/// More rounds than any log reaches: a header with more is damaged.
const ROUNDS_MAX: u64 = 1 << 24;

/// The live version: the state of the log, and the payloads of base and deltas.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) state: LogState,
    pub(crate) payloads: Vec<Vec<u8>>,
    /// Highest generation that wrote any of it.
    pub(crate) generation: Generation,
    /// Damage of the first object, whose contents are known.
    pub(crate) origin_damage: Option<VolumeError>,
}

/// An object that follows the one before it.
struct FoundObject {
    header: ObjectHeader,
    checksum: u32,
    payload: Vec<u8>,
}

struct Scan<'a> {
    window: Window<'a>,
    salt: u64,
    area_at: u64,
    area_bytes: u64,
}

impl Scan<'_> {
    fn corrupt(&self, offset: u64, expected: &str, found: &str) -> VolumeError {
        debug_assert!(offset < self.area_bytes, "the error is in the log");
        VolumeError::Corrupt {
            what: "version log".to_owned(),
            at: self.area_at + offset,
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }

    /// Returns the object at an offset, if a valid one stands there.
    fn object(&mut self, offset: u64) -> Result<Option<FoundObject>, VolumeError> {
        if offset >= self.area_bytes {
            return Ok(None);
        }
        let Ok(header) = ObjectHeader::decode_header(self.window.bytes(offset, ALIGN)?) else {
            return Ok(None);
        };
        let len = ObjectHeader::object_bytes(u64::from(header.payload_len));
        if len > self.area_bytes - offset || header.position % self.area_bytes != offset {
            return Ok(None);
        }
        debug_assert!(len >= ALIGN, "an object has a header");
        let bytes = self.window.bytes(offset, len)?;
        let Ok((header, payload, checksum)) = ObjectHeader::decode(self.salt, bytes) else {
            return Ok(None);
        };
        let payload = payload.to_vec();
        Ok(Some(FoundObject {
            header,
            checksum,
            payload,
        }))
    }

    /// Continues `met` by the objects from `offset` on. Returns the last base and all objects after
    /// it; without a base, all objects. Empty if `met` is, and no valid object stands there.
    fn run(&mut self, met: Vec<FoundObject>, offset: u64) -> Result<Vec<FoundObject>, VolumeError> {
        let mut run = met;
        let mut offset = offset;
        while let Some(found) = self.object(offset)? {
            if let Some(last) = run.last()
                && !follows(last, &found)
            {
                break;
            }
            debug_assert_eq!(
                found.header.position % self.area_bytes,
                offset,
                "it was checked"
            );
            offset += found.header.end() - found.header.position;
            debug_assert!(offset <= self.area_bytes, "objects do not straddle");
            if found.header.kind == ObjectKind::Base {
                run.clear();
            }
            run.push(found);
        }
        debug_assert!(
            run.iter()
                .skip(1)
                .all(|object| object.header.kind == ObjectKind::Delta),
            "only the first may be a base or a wrapping object"
        );
        Ok(run)
    }
}

impl Scan<'_> {
    /// Returns the damaged first object of the log, restored, and the objects behind it. Empty if
    /// none follows it, or if another object stands there.
    fn run_behind_origin(&mut self) -> Result<Vec<FoundObject>, VolumeError> {
        // In a later round the next objects may be older than this one.
        let there = ObjectHeader::position_in_damaged(self.window.bytes(0, ALIGN)?);
        if self.is_of_later_round(there) {
            return Ok(Vec::new());
        }
        let origin = mkfs::origin(self.salt);
        let Ok((header, _, checksum)) = ObjectHeader::decode(self.salt, &origin) else {
            return Ok(Vec::new());
        };
        let origin = FoundObject {
            header,
            checksum,
            payload: Vec::new(),
        };
        assert_eq!(
            (header.kind, header.position),
            (ObjectKind::Base, 0),
            "the first object of a log"
        );
        let run = self.run(vec![origin], header.end())?;
        let follows = run.last().is_some_and(|last| last.header.position > 0);
        Ok(if follows { run } else { Vec::new() })
    }

    /// Reports whether an object at the left end can be that of a round after the first.
    const fn is_of_later_round(&self, position: u64) -> bool {
        let round = position / self.area_bytes;
        round > 0 && round < ROUNDS_MAX && position.is_multiple_of(self.area_bytes)
    }

    /// Checks that no valid object stands behind an invalid one. At most one object is not durable
    /// at a time, so a valid successor proves that the invalid one is damaged, not torn. Searches
    /// as far as most objects are long.
    fn check_nothing_after(&mut self, tail: u64) -> Result<(), VolumeError> {
        let from = tail % self.area_bytes;
        debug_assert!(from.is_multiple_of(ALIGN), "objects are whole pages");
        let end = self.area_bytes.min(from + LOOK_AHEAD_BYTES);
        let mut offset = from + ALIGN;
        while from > 0 && offset + ALIGN <= end {
            if let Some(found) = self.object(offset)?
                && found.header.position > tail
            {
                let found = format!(
                    "none, and a later one at position {}",
                    found.header.position
                );
                return Err(self.corrupt(from, "an object", &found));
            }
            offset += ALIGN;
        }
        Ok(())
    }
}

/// Reports whether an object was written right after another one in the same round.
fn follows(last: &FoundObject, next: &FoundObject) -> bool {
    let (a, b) = (&last.header, &next.header);
    let serial = match b.kind {
        ObjectKind::Base => a.serial.checked_add(1),
        ObjectKind::Delta => Some(a.serial),
        ObjectKind::WrapLeft | ObjectKind::WrapRight => return false,
    };
    debug_assert!(a.end() > a.position, "objects have a length");
    b.position == a.end()
        && b.previous == last.checksum
        && Some(b.serial) == serial
        && b.generation >= a.generation
        && b.log_start >= a.log_start
}

/// Reads the live version.
pub(crate) fn recover(
    device: &dyn Device,
    salt: u64,
    logs: &LogAreas,
) -> Result<Recovered, VolumeError> {
    let mut scan = Scan {
        window: Window::new(device, logs.version_log_at, logs.version_log_bytes),
        salt,
        area_at: logs.version_log_at,
        area_bytes: logs.version_log_bytes,
    };
    let mut left = scan.run(Vec::new(), 0)?;
    let mut origin_damage = None;
    if left.is_empty() {
        left = scan.run_behind_origin()?;
        origin_damage = Some(scan.corrupt(0, "the empty version that mkfs writes", "none"));
    }
    let Some(first) = left.first() else {
        return Err(scan.corrupt(0, "an object", "none"));
    };
    let mut live = match first.header.kind {
        ObjectKind::Base => Vec::new(),
        ObjectKind::WrapLeft => right_of_wrap(&mut scan, first)?,
        ObjectKind::Delta | ObjectKind::WrapRight => {
            return Err(scan.corrupt(0, "a base or a wrapping object", "another object"));
        }
    };
    live.extend(left);
    let recovered = summary(&scan, live)?;
    scan.check_nothing_after(recovered.state.tail)?;
    Ok(Recovered {
        origin_damage,
        ..recovered
    })
}

/// Rewrites the first object.
pub(crate) fn mend_origin(
    device: &dyn Device,
    salt: u64,
    logs: &LogAreas,
) -> Result<(), VolumeError> {
    device.write_at(logs.version_log_at, &[&mkfs::origin(salt)])?;
    Ok(device.sync()?)
}

/// Refuses a log that ends before its end at the last clean close.
pub(crate) fn check_end(
    closed: &Closed,
    logs: &LogAreas,
    state: &LogState,
) -> Result<(), VolumeError> {
    let closed_end = closed.version_end;
    if state.tail >= closed_end {
        return Ok(());
    }
    Err(VolumeError::Corrupt {
        what: "version log".to_owned(),
        at: logs.version_log_at + state.tail % logs.version_log_bytes,
        expected: format!("objects up to position {}", closed_end),
        found: format!("objects up to position {}", state.tail),
    })
}

/// Returns the base that a wrapping object names, and the deltas up to the wrap.
fn right_of_wrap(scan: &mut Scan<'_>, wrap: &FoundObject) -> Result<Vec<FoundObject>, VolumeError> {
    let target = wrap.header.target;
    let is_round_before = target / scan.area_bytes + 1 == wrap.header.position / scan.area_bytes;
    if !is_round_before {
        let found = format!("position {target}");
        return Err(scan.corrupt(0, "a base in the round before", &found));
    }
    let offset = target % scan.area_bytes;
    let run = scan.run(Vec::new(), offset)?;
    debug_assert!(offset < scan.area_bytes, "the base lies in the log");
    let is_whole = run
        .first()
        .is_some_and(|base| base.header.kind == ObjectKind::Base && base.header.position == target);
    let is_joined = run.last().is_some_and(|last| {
        last.checksum == wrap.header.previous && last.header.serial == wrap.header.serial
    });
    if is_whole && is_joined {
        return Ok(run);
    }
    Err(scan.corrupt(offset, "the live base and its deltas", "other objects"))
}

fn summary(scan: &Scan<'_>, live: Vec<FoundObject>) -> Result<Recovered, VolumeError> {
    let base = live.first().expect("a base is live").header;
    let last = live.last().expect("a base is live");
    assert_eq!(
        base.kind,
        ObjectKind::Base,
        "live objects start with a base"
    );
    if !last.header.log_start.0.is_multiple_of(log_record::ALIGN) {
        let found = last.header.log_start.to_string();
        return Err(scan.corrupt(0, "a log start that is a multiple of eight", &found));
    }
    debug_assert!(
        base.position < last.header.end(),
        "the base is before the end"
    );
    debug_assert!(
        live.windows(2)
            .all(|pair| pair[0].header.end() <= pair[1].header.position),
        "objects follow each other"
    );
    let is_object = |f: &&FoundObject| f.header.kind == ObjectKind::Delta;
    let deltas = live.iter().filter(is_object);
    let state = LogState {
        live: base.position,
        tail: last.header.end(),
        serial: base.serial,
        previous: last.checksum,
        base_bytes: base.end() - base.position,
        deltas_bytes: deltas.map(|f| f.header.end() - f.header.position).sum(),
        log_start: last.header.log_start,
        log_generation: last.header.log_generation,
        log_durable: last.header.log_durable,
    };
    let generation = last.header.generation;
    // The base that mkfs writes is empty and does not belong to the engine.
    let is_engines = |f: &FoundObject| match f.header.kind {
        ObjectKind::Base => f.header.serial > 0,
        ObjectKind::Delta => true,
        ObjectKind::WrapLeft | ObjectKind::WrapRight => false,
    };
    let engines = live.into_iter().filter(is_engines);
    let payloads = engines.map(|f| f.payload).collect();
    check_positions(scan, &state)?;
    debug_assert!(
        state.tail - state.live <= scan.area_bytes,
        "live objects lie in the log"
    );
    debug_assert!(state.base_bytes > 0, "objects have headers");
    Ok(Recovered {
        state,
        payloads,
        generation,
        origin_damage: None,
    })
}

/// Refuses positions that are so high that arithmetic could overflow.
fn check_positions(scan: &Scan<'_>, state: &LogState) -> Result<(), VolumeError> {
    const POSITION_MAX: u64 = 1 << 62;
    let Lsn(log_durable) = state.log_durable;
    if state.log_start > state.log_durable {
        return Err(scan.corrupt(0, "a durable log start", "one that is not"));
    }
    if state.tail.max(log_durable).max(state.serial) <= POSITION_MAX {
        return Ok(());
    }
    Err(scan.corrupt(0, "positions below 2^62", "higher ones"))
}
