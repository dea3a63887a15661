//! What a holder and its daemon tell each other, as JSON. Both may be of different versions, after
//! an upgrade.
//!
//! ```text
//! holder: begin | take over (with the descriptors) | hand over | about
//! daemon: keep (with the descriptors) | ready | upgrade | handed over
//! ```

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use stitch_fuse::session::{Kept, Negotiated};
use stitch_fuse::wire::flags::InitFlags;

/// Raised when an older program would misunderstand a newer one.
const PROTOCOL: u64 = 1;

/// To the daemon.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Order {
    /// Mount.
    Begin { about: Value },
    /// Go on with a mount.
    TakeOver { state: Value, about: Value },
    /// Close the store and end; the mount stays.
    HandOver,
    /// What is to be said of the holder from now on.
    About(Value),
}

impl Order {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut message = match self {
            Self::Begin { about } => json!({ "do": "begin", "about": about }),
            Self::TakeOver { state, about } => {
                json!({ "do": "take over", "state": state, "about": about })
            }
            Self::HandOver => json!({ "do": "hand over" }),
            Self::About(about) => json!({ "do": "about", "about": about }),
        };
        message["protocol"] = json!(PROTOCOL);
        let bytes = message.to_string().into_bytes();
        debug_assert!(
            Self::decode(&bytes).is_ok_and(|read| read == *self),
            "the daemon reads the same"
        );
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut message = parse(bytes)?;
        let about = message["about"].take();
        Ok(match message["do"].as_str() {
            Some("begin") => Self::Begin { about },
            Some("take over") => Self::TakeOver {
                state: message["state"].take(),
                about,
            },
            Some("hand over") => Self::HandOver,
            Some("about") => Self::About(about),
            _ => bail!("an order that is not known"),
        })
    }
}

/// To the holder.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Report {
    /// Keep this, and the descriptors, for the next daemon.
    Keep { state: Value },
    /// The mount is served.
    Ready,
    /// An `upgrade` command asks for the program on disk.
    Upgrade { token: Value },
    /// The store is closed; requests have waited for so long.
    HandedOver { waited_us: u64 },
}

impl Report {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut message = match self {
            Self::Keep { state } => json!({ "say": "keep", "state": state }),
            Self::Ready => json!({ "say": "ready" }),
            Self::Upgrade { token } => json!({ "say": "upgrade", "token": token }),
            Self::HandedOver { waited_us } => {
                json!({ "say": "handed over", "waited_us": waited_us })
            }
        };
        message["protocol"] = json!(PROTOCOL);
        let bytes = message.to_string().into_bytes();
        debug_assert!(
            Self::decode(&bytes).is_ok_and(|read| read == *self),
            "the holder reads the same"
        );
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut message = parse(bytes)?;
        Ok(match message["say"].as_str() {
            Some("keep") => Self::Keep {
                state: message["state"].take(),
            },
            Some("ready") => Self::Ready,
            Some("upgrade") => Self::Upgrade {
                token: message["token"].take(),
            },
            Some("handed over") => Self::HandedOver {
                waited_us: message["waited_us"].as_u64().unwrap_or_default(),
            },
            _ => bail!("a report that is not known"),
        })
    }
}

fn parse(bytes: &[u8]) -> Result<Value> {
    let message: Value = serde_json::from_slice(bytes).context("a message makes no sense")?;
    if message["protocol"] != json!(PROTOCOL) {
        bail!("the process that keeps the mount is of another version; unmount and mount again");
    }
    Ok(message)
}

/// All that the next daemon has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) kept: Kept,
    pub(super) store: PathBuf,
    pub(super) log: Option<PathBuf>,
}

impl State {
    pub(super) fn encode(&self) -> Value {
        let kept = &self.kept;
        let negotiated = &kept.negotiated;
        let state = json!({
            "mount_point": bytes_of(&kept.path),
            "device": kept.device.map(|(major, minor)| [major, minor]),
            "store": bytes_of(&self.store),
            "log": self.log.as_deref().map(bytes_of),
            "minor": negotiated.minor,
            "flags": negotiated.flags.0,
            "offered": negotiated.offered.0,
            "max_write": negotiated.max_write,
            "max_readahead": negotiated.max_readahead,
        });
        debug_assert!(
            Self::decode(&state).is_ok_and(|read| read == *self),
            "the next daemon reads the same"
        );
        state
    }

    pub(super) fn decode(value: &Value) -> Result<Self> {
        let number = |name: &str| {
            let number = value[name].as_u64();
            number.with_context(|| format!("what is kept of the mount has no {name}"))
        };
        let small = |name: &str| anyhow::Ok(u32::try_from(number(name)?)?);
        let path = |name: &str| {
            let path = path_of(&value[name]);
            path.with_context(|| format!("what is kept of the mount has no {name}"))
        };
        let negotiated = Negotiated {
            minor: small("minor")?,
            flags: InitFlags(number("flags")?),
            offered: InitFlags(number("offered")?),
            max_write: small("max_write")?,
            max_readahead: small("max_readahead")?,
        };
        let part = |index: usize| u32::try_from(value["device"][index].as_u64()?).ok();
        Ok(Self {
            kept: Kept {
                path: path("mount_point")?,
                device: part(0).zip(part(1)),
                negotiated,
            },
            store: path("store")?,
            log: path_of(&value["log"]),
        })
    }
}

/// A path need not be text.
fn bytes_of(path: &Path) -> Value {
    json!(path.as_os_str().as_bytes())
}

fn path_of(value: &Value) -> Option<PathBuf> {
    let numbers = value.as_array()?.iter();
    let bytes = numbers.map(|number| u8::try_from(number.as_u64()?).ok());
    let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(device: Option<(u32, u32)>, log: Option<&str>) -> State {
        State {
            kept: Kept {
                path: PathBuf::from(OsString::from_vec(vec![b'/', 0xff, b'm'])),
                device,
                negotiated: Negotiated {
                    minor: 45,
                    flags: InitFlags(u64::MAX),
                    offered: InitFlags(1 << 63),
                    max_write: 1 << 20,
                    max_readahead: u32::MAX,
                },
            },
            store: PathBuf::from("/store"),
            log: log.map(PathBuf::from),
        }
    }

    #[test]
    fn messages_go_there_and_back() {
        let about = json!({ "restarts": 3 });
        let state = state(Some((0, 77)), Some("/log")).encode();
        for order in [
            Order::Begin {
                about: about.clone(),
            },
            Order::TakeOver {
                state: state.clone(),
                about: about.clone(),
            },
            Order::HandOver,
            Order::About(about),
        ] {
            assert_eq!(Order::decode(&order.encode()).unwrap(), order);
        }
        for report in [
            Report::Keep { state },
            Report::Ready,
            Report::Upgrade { token: json!(7) },
            Report::HandedOver { waited_us: 9 },
        ] {
            assert_eq!(Report::decode(&report.encode()).unwrap(), report);
        }
    }

    #[test]
    fn what_is_kept_of_a_mount_goes_there_and_back() {
        for state in [state(Some((0, 77)), None), state(None, Some("/var/log/s"))] {
            let text = state.encode().to_string();
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(State::decode(&value).unwrap(), state);
        }
        assert!(State::decode(&json!({ "minor": 45 })).is_err());
    }

    #[test]
    fn another_protocol_is_refused_with_what_helps() {
        let message = json!({ "do": "begin", "protocol": 2 }).to_string();
        let error = Order::decode(message.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("unmount"), "{error}");
        assert!(Order::decode(b"{").is_err());
    }
}
