//! Work on the space of a store, as commands and daemons tell each other of it.
//!
//! | task | changes the store |
//! |---|---|
//! | defrag, trim, grow, shrink | yes |
//! | usage | no; needs the file system |

use crate::usage::{self, UsageOf};
use crate::{Store, StoreError, set_path};
use serde_json::{Value, json};
use stitch_base::sync::Arc;
use stitch_fs::FileSystem;
use stitch_vt::Watch;

/// Something to be done about the space of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Evacuate zones with holes.
    Defrag,
    /// Tell the device what is free.
    Trim,
    /// Make it longer; by default as long as the device.
    Grow(Option<u64>),
    /// Make it shorter.
    Shrink(u64),
    /// Tell what snapshots, clones or a directory need of the space.
    Usage(UsageOf),
}

impl Task {
    /// What it is called.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Defrag => "defrag",
            Self::Trim => "trim",
            Self::Grow(_) => "grow",
            Self::Shrink(_) => "shrink",
            Self::Usage(_) => "usage",
        }
    }

    /// As it is told to a daemon.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let bytes = match *self {
            Self::Usage(of) => return json!({ "do": self.name(), "of": of.to_json() }),
            Self::Defrag | Self::Trim => None,
            Self::Grow(bytes) => bytes,
            Self::Shrink(bytes) => Some(bytes),
        };
        let told = json!({ "do": self.name(), "bytes": bytes });
        debug_assert_eq!(
            Self::from_json(&told),
            Some(*self),
            "the daemon does the same"
        );
        told
    }

    /// From what a daemon was told; `None` if that makes no sense.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Self> {
        let bytes = &value["bytes"];
        match value["do"].as_str()? {
            "defrag" => Some(Self::Defrag),
            "trim" => Some(Self::Trim),
            "grow" if bytes.is_null() => Some(Self::Grow(None)),
            "grow" => bytes.as_u64().map(|bytes| Self::Grow(Some(bytes))),
            "shrink" => bytes.as_u64().map(Self::Shrink),
            "usage" => UsageOf::from_json(&value["of"]).map(Self::Usage),
            _ => None,
        }
    }

    /// Runs it. `fs` is the file system of the store if it is open already. Returns what came of
    /// it; `is_stopped` in it is true if `watch` ended it early.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn run(
        &self,
        store: &Store,
        fs: Option<&Arc<FileSystem>>,
        watch: &mut Watch<'_>,
    ) -> Result<Value, StoreError> {
        let mut is_stopped = false;
        let mut watch = |done, total| {
            let goes_on = watch(done, total);
            is_stopped |= !goes_on;
            goes_on
        };
        let mut out = match *self {
            Self::Defrag => {
                let done = store.defrag(&mut watch)?;
                json!({
                    "moved_bytes": done.moved_bytes,
                    "ordered_bytes": done.ordered_bytes,
                    "freed_bytes": done.freed_bytes,
                    "holes_before_bytes": done.holes_before_bytes,
                    "holes_after_bytes": done.holes_after_bytes,
                })
            }
            Self::Trim => json!({ "discarded_bytes": store.trim(&mut watch)? }),
            Self::Grow(bytes) => {
                let resized = store.grow(bytes)?;
                json!({ "bytes_before": resized.before, "bytes": resized.after })
            }
            Self::Shrink(bytes) => {
                let resized = store.shrink(bytes, &mut watch)?;
                json!({ "bytes_before": resized.before, "bytes": resized.after })
            }
            Self::Usage(of) => usage::run(of, store, fs, &mut watch)?,
        };
        set_path(&mut out, "store", store.path());
        out["is_stopped"] = json!(is_stopped);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_come_back_from_what_a_daemon_is_told() {
        for task in [
            Task::Defrag,
            Task::Trim,
            Task::Grow(None),
            Task::Grow(Some(1 << 40)),
            Task::Shrink(16 << 20),
            Task::Usage(UsageOf::Everything),
            Task::Usage(UsageOf::Snapshots),
            Task::Usage(UsageOf::Directory(1 << 45)),
        ] {
            assert_eq!(Task::from_json(&task.to_json()), Some(task));
        }
        for nonsense in [
            json!({}),
            json!({ "do": "shrink" }),
            json!({ "do": "grow", "bytes": -1 }),
            json!({ "do": "format" }),
            json!({ "do": "usage" }),
            json!({ "do": "usage", "of": -1 }),
            json!([1]),
        ] {
            assert_eq!(Task::from_json(&nonsense), None);
        }
    }
}
