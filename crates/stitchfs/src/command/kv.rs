//! `stitchfs kv`: reads and changes keys of a store, mounted or not.

mod batch;
mod target;
mod transaction;

use super::output;
use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use stitch_serve::Response;
use target::KeyTarget;

/// Exit code for a key that is not there.
const NO_KEY: u8 = 3;
/// Keys that are asked for at once.
const SCAN_COUNT: &[u8] = b"1000";

const AFTER: &str = "\
These are the keys that Redis clients see (stitchfs serve). A mounted store is
reached through its mount, which needs -o kv; one that is served by `stitchfs
serve` is in use. Within a transaction (stitchfs txn run), and at
MNT/.stitchfs/txn/NAME, the keys are those of the transaction.

Values are printed as they are. With --hex, keys and values are hexadecimal
digits on the command line, in files and in what is printed.

Exit codes: 0 success, 1 failure, 2 wrong command line, 3 no such key.";

/// Read and change the keys of a store, mounted or not
#[derive(Debug, Parser)]
#[command(after_help = AFTER)]
pub(super) struct KvArgs {
    #[command(subcommand)]
    action: KvAction,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Keys and values are hexadecimal digits
    #[arg(long)]
    hex: bool,

    /// File, directory or block device, or the mount point of its mount
    #[arg(value_name = "STORE|MNT")]
    path: PathBuf,
}

#[derive(Debug, Subcommand)]
enum KvAction {
    /// Print the value of a key
    Get {
        #[command(flatten)]
        common: Common,
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Set a key
    Put {
        #[command(flatten)]
        common: Common,
        #[arg(value_name = "KEY")]
        key: String,
        /// The value; - reads it from standard input, whole
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
    },
    /// Remove keys
    Del {
        #[command(flatten)]
        common: Common,
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
    },
    /// List keys in their order
    Scan {
        #[command(flatten)]
        common: Common,
        /// Only keys that match a pattern with *, ? and [a-z]
        #[arg(long = "match", value_name = "PATTERN")]
        pattern: Option<String>,
        /// At most so many
        #[arg(long, value_name = "COUNT", default_value_t = usize::MAX, hide_default_value = true)]
        limit: usize,
    },
    /// Run the lines "put KEY VALUE" and "del KEY" of a file, all of them or none
    ///
    /// Words are separated by spaces; one with spaces in it is quoted: "a b\n\x00".
    Batch {
        #[command(flatten)]
        common: Common,
        /// The file; - is standard input
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
}

impl KvArgs {
    /// The store or mount that is meant.
    pub(super) const fn path_mut(&mut self) -> &mut PathBuf {
        match &mut self.action {
            KvAction::Get { common, .. }
            | KvAction::Put { common, .. }
            | KvAction::Del { common, .. }
            | KvAction::Scan { common, .. }
            | KvAction::Batch { common, .. } => &mut common.path,
        }
    }
}

pub(super) fn run(args: &KvArgs) -> Result<u8> {
    match &args.action {
        KvAction::Get { common, key } => get(common, key),
        KvAction::Put { common, key, value } => put(common, key, value),
        KvAction::Del { common, keys } => del(common, keys),
        KvAction::Scan {
            common,
            pattern,
            limit,
        } => scan(common, pattern.as_deref(), *limit),
        KvAction::Batch { common, file } => run_batch(common, file),
    }
}

impl Common {
    /// A word of the command line as bytes.
    fn bytes(&self, word: &str) -> Result<Vec<u8>> {
        if self.hex {
            return from_hex(word.as_bytes());
        }
        Ok(word.as_bytes().to_vec())
    }

    /// A key or value as a line of text.
    fn line(&self, bytes: &[u8]) -> String {
        if self.hex {
            to_hex(bytes)
        } else {
            bytes.escape_ascii().to_string()
        }
    }

    /// A key or value for JSON: text where it is some, and always hexadecimal digits.
    fn add(&self, to: &mut Value, name: &str, bytes: &[u8]) {
        to[name] = match std::str::from_utf8(bytes) {
            Ok(text) if !self.hex => json!(text),
            _ => Value::Null,
        };
        to[format!("{name}_hex")] = json!(to_hex(bytes));
    }
}

fn get(common: &Common, key: &str) -> Result<u8> {
    let key = common.bytes(key)?;
    let mut target = KeyTarget::open(&common.path)?;
    let response = target.call(&[b"GET", &key])?;
    target.close()?;
    let Response::Bulk(value) = response else {
        output::note(&format!("no such key: {}", key.escape_ascii()));
        return Ok(NO_KEY);
    };
    if common.json {
        let mut out = json!({});
        common.add(&mut out, "key", &key);
        common.add(&mut out, "value", &value);
        output::print_json(&out)?;
    } else if common.hex {
        output::print(&to_hex(&value))?;
    } else {
        output::print_bytes(&value)?;
    }
    Ok(0)
}

fn put(common: &Common, key: &str, value: &str) -> Result<u8> {
    let key = common.bytes(key)?;
    let value = if value == "-" {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.context("cannot read standard input")?;
        if common.hex {
            from_hex(bytes.trim_ascii())?
        } else {
            bytes
        }
    } else {
        common.bytes(value)?
    };
    let mut target = KeyTarget::open(&common.path)?;
    target.call(&[b"SET", &key, &value])?;
    target.close()?;
    if common.json {
        output::print_json(&json!({"put": 1}))?;
    }
    Ok(0)
}

fn del(common: &Common, keys: &[String]) -> Result<u8> {
    let keys: Vec<Vec<u8>> = keys
        .iter()
        .map(|key| common.bytes(key))
        .collect::<Result<_>>()?;
    let mut words: Vec<&[u8]> = vec![b"DEL"];
    words.extend(keys.iter().map(Vec::as_slice));
    let mut target = KeyTarget::open(&common.path)?;
    let response = target.call(&words)?;
    target.close()?;
    let Response::Integer(count) = response else {
        bail!("DEL has no number");
    };
    if common.json {
        output::print_json(&json!({"deleted": count}))?;
    }
    Ok(if count == 0 { NO_KEY } else { 0 })
}

fn scan(common: &Common, pattern: Option<&str>, limit: usize) -> Result<u8> {
    let mut target = KeyTarget::open(&common.path)?;
    let mut cursor = b"0".to_vec();
    let mut keys = Vec::new();
    loop {
        let mut words: Vec<&[u8]> = vec![b"SCAN", &cursor, b"COUNT", SCAN_COUNT];
        if let Some(pattern) = pattern {
            words.extend([&b"MATCH"[..], pattern.as_bytes()]);
        }
        let (next, page) = page_of(target.call(&words)?).context("SCAN has no keys")?;
        for key in page {
            if common.json {
                keys.push(key);
            } else {
                output::print(&common.line(&key))?;
                keys.push(Vec::new());
            }
            if keys.len() == limit {
                break;
            }
        }
        if next == b"0" || keys.len() >= limit {
            break;
        }
        cursor = next;
    }
    target.close()?;
    if common.json {
        let rows = keys.iter().map(|key| {
            let mut row = json!({});
            common.add(&mut row, "key", key);
            row
        });
        output::print_json(&json!({"keys": rows.collect::<Vec<_>>()}))?;
    }
    Ok(0)
}

/// Cursor and keys of a step of a walk.
fn page_of(response: Response) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let Response::Array(parts) = response else {
        return None;
    };
    let [Response::Bulk(cursor), Response::Array(keys)] = <[Response; 2]>::try_from(parts).ok()?
    else {
        return None;
    };
    let keys = keys.into_iter().map(|key| match key {
        Response::Bulk(key) => Some(key),
        _ => None,
    });
    Some((cursor, keys.collect::<Option<_>>()?))
}

fn run_batch(common: &Common, file: &Path) -> Result<u8> {
    let text = if file == Path::new("-") {
        let mut text = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut text)
            .context("cannot read standard input")?;
        text
    } else {
        std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?
    };
    let changes = batch::parse(&text, common.hex)?;
    let mut target = KeyTarget::open(&common.path)?;
    target.call(&[b"MULTI"])?;
    for (change, number) in changes.iter().zip(1..) {
        let words: Vec<&[u8]> = change.iter().map(Vec::as_slice).collect();
        let queued = target.call(&words);
        queued.with_context(|| format!("change {number} is refused, and none is made"))?;
    }
    let response = target.call(&[b"EXEC"])?;
    target.close()?;
    if let Response::Array(replies) = &response
        && let Some(Response::Error(text)) =
            replies.iter().find(|r| matches!(r, Response::Error(_)))
    {
        bail!("a change was refused, and the others are done: {text}");
    }
    if common.json {
        output::print_json(&json!({"changes": changes.len()}))?;
    }
    Ok(0)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &[u8]) -> Result<Vec<u8>> {
    let digit = |byte: &u8| {
        char::from(*byte)
            .to_digit(16)
            .and_then(|d| u8::try_from(d).ok())
    };
    let digits: Option<Vec<u8>> = text.iter().map(digit).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2));
    let digits = digits.context("not an even number of hexadecimal digits")?;
    Ok(digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_lead_back() {
        assert_eq!(to_hex(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(from_hex(b"001FfF").unwrap(), [0, 0x1f, 0xff]);
        for wrong in [&b"0"[..], b"0g", b"-1"] {
            assert!(from_hex(wrong).is_err());
        }
    }
}
