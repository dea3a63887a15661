//! Moments of the history: pins, which no row tells of.

use super::Issue;
use crate::FsResult;
use stitch_format::FormatError;
use stitch_format::fs_moment::{MOMENT_PREFIX, MomentRecord, moment_number};
use stitch_kv::{Engine, KvError};

/// Returns the moments that cannot be read. One of a newer version is no fault.
pub(super) fn damaged(engine: &dyn Engine) -> FsResult<Vec<Issue>> {
    if !engine.capabilities().pins {
        return Ok(Vec::new());
    }
    let mut issues = Vec::new();
    for pin in engine.pins()? {
        if !pin.name.starts_with(MOMENT_PREFIX) {
            continue;
        }
        let detail = match MomentRecord::decode(&pin.user) {
            Err(FormatError::Newer { .. }) => continue,
            Err(error) => error.to_string(),
            Ok(_) if moment_number(&pin.name).is_none() => "its name has no number".to_owned(),
            Ok(_) => continue,
        };
        let pin = pin.name;
        issues.push(Issue::BadMoment { pin, detail });
    }
    debug_assert!(
        issues.iter().all(Issue::is_repairable),
        "a repair drops the pin"
    );
    Ok(issues)
}

/// Drops the moments that cannot be read. Returns their number.
pub(super) fn drop_damaged(engine: &dyn Engine, issues: &[Issue]) -> FsResult<u64> {
    let mut count = 0;
    for issue in issues {
        if let Issue::BadMoment { pin, .. } = issue {
            match engine.drop_pin(pin) {
                Ok(()) => count += 1,
                Err(KvError::PinNotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    debug_assert!(count <= issues.len() as u64, "an issue is repaired once");
    Ok(count)
}
