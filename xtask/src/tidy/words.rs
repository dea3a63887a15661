//! Words that no file may use, or only some crates.

use super::Finding;
use crate::source::{Source, is_test_path};

/// A word that only the named crates may use outside tests.
struct Reserved {
    word: &'static str,
    /// Continuations of the word that are allowed.
    except: &'static [&'static str],
    crates: &'static [&'static str],
    why: &'static str,
}

/// `send` reads and writes files of users, not the store.
const IO: &[&str] = &["device", "fuse", "send", "stitchfs"];
/// `rocks` asks the host for its free space; its I/O is RocksDB's.
const FS_CALLS: &[&str] = &["device", "fuse", "send", "stitchfs", "rocks"];
const PRINTING: &[&str] = &["stitchfs"];
const IO_WHY: &str = "only `device` does storage I/O";
const PRINT_WHY: &str = "only `stitchfs` prints";
const SHIM_WHY: &str = "clock, randomness and threads come from `base`";
/// What of `std::thread` starts no thread.
const HARMLESS: &[&str] = &[
    "::JoinHandle",
    "::available_parallelism",
    "::panicking",
    "::current",
    "::Result",
];

const RESERVED: [Reserved; 17] = [
    Reserved {
        word: "std::fs",
        except: &[],
        crates: IO,
        why: IO_WHY,
    },
    Reserved {
        word: "std::os::unix::fs",
        except: &[],
        crates: IO,
        why: IO_WHY,
    },
    Reserved {
        word: "std::os::linux::fs",
        except: &[],
        crates: IO,
        why: IO_WHY,
    },
    Reserved {
        word: "rustix::fs",
        except: &[],
        crates: FS_CALLS,
        why: IO_WHY,
    },
    Reserved {
        word: "rustix::io",
        except: &["::Errno"],
        crates: IO,
        why: IO_WHY,
    },
    Reserved {
        word: "std::net",
        except: &[],
        crates: &["serve"],
        why: "only `serve` has sockets",
    },
    Reserved {
        word: "println!",
        except: &[],
        crates: PRINTING,
        why: PRINT_WHY,
    },
    Reserved {
        word: "print!",
        except: &[],
        crates: PRINTING,
        why: PRINT_WHY,
    },
    Reserved {
        word: "eprintln!",
        except: &[],
        crates: PRINTING,
        why: PRINT_WHY,
    },
    Reserved {
        word: "eprint!",
        except: &[],
        crates: PRINTING,
        why: PRINT_WHY,
    },
    Reserved {
        word: "std::io::stdout",
        except: &[],
        crates: PRINTING,
        why: PRINT_WHY,
    },
    Reserved {
        word: "std::io::stderr",
        except: &[],
        crates: PRINTING,
        why: PRINT_WHY,
    },
    Reserved {
        word: "Instant::now",
        except: &[],
        crates: &["base"],
        why: SHIM_WHY,
    },
    Reserved {
        word: "SystemTime::now",
        except: &[],
        crates: &["base"],
        why: SHIM_WHY,
    },
    Reserved {
        word: "std::thread",
        except: HARMLESS,
        crates: &["base"],
        why: SHIM_WHY,
    },
    Reserved {
        word: "getrandom::",
        except: &[],
        crates: &["base"],
        why: SHIM_WHY,
    },
    Reserved {
        word: "RandomState",
        except: &[],
        crates: &["base"],
        why: SHIM_WHY,
    },
];

/// What names an engine. The contract of all of them must not.
const ENGINE_NAMES: [&str; 5] = ["stitch_vt", "\"vt.", "\"be.", "\"rocks.", "\"tikv."];

/// Checks every file.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        if source.path.ends_with(".rs") || source.path.ends_with(".toml") {
            find_non_ascii(source, &mut findings);
        }
        if source.path.ends_with(".rs") {
            find_leftovers(source, &mut findings);
            find_bare_matches(source, &mut findings);
            find_crate_wide_allow(source, &mut findings);
            find_reserved(source, &mut findings);
            find_engine_names(source, &mut findings);
        }
    }
    findings
}

fn find_non_ascii(source: &Source, findings: &mut Vec<Finding>) {
    if let Some(at) = source.text.bytes().position(|byte| !byte.is_ascii()) {
        findings.push(Finding::new(source, at, "source is ASCII"));
    }
}

/// Notes to self, in comments too, and macros that stand for missing code.
fn find_leftovers(source: &Source, findings: &mut Vec<Finding>) {
    // Written in two parts, so that this file does not find itself.
    for word in [
        concat!("FIX", "ME"),
        concat!("TO", "DO"),
        concat!("XX", "X:"),
    ] {
        for at in places(&source.text, word) {
            findings.push(Finding::new(source, at, format!("`{word}` is left over")));
        }
    }
    for word in ["dbg!", "todo!", "unimplemented!"] {
        for at in places(&source.code, word) {
            findings.push(Finding::new(source, at, format!("`{word}` is left over")));
        }
    }
}

/// Finds a `matches!(...)` whose result is dropped. The compiler does not warn about it.
fn find_bare_matches(source: &Source, findings: &mut Vec<Finding>) {
    for at in places(&source.code, "matches!") {
        let before = source.code[..at].trim_end();
        let begins_statement = before.is_empty() || before.ends_with([';', '{', '}']);
        let open = at + "matches!".len();
        let after = group_end(source.code.as_bytes(), open);
        let ends_statement = source.code[after..].trim_start().starts_with(';');
        if begins_statement && ends_statement {
            findings.push(Finding::new(
                source,
                at,
                "result of `matches!` is dropped: assert it",
            ));
        }
    }
}

fn find_crate_wide_allow(source: &Source, findings: &mut Vec<Finding>) {
    // Shared by test binaries that each use a part: an expectation would fail in some of them.
    if source.path.ends_with("/tests/common/mod.rs") {
        return;
    }
    for at in places(&source.code, "#![allow(") {
        findings.push(Finding::new(
            source,
            at,
            "use `#[expect(.., reason = \"..\")]` on the item",
        ));
    }
}

fn find_reserved(source: &Source, findings: &mut Vec<Finding>) {
    let Some(rest) = source.path.strip_prefix("crates/") else {
        return;
    };
    let krate = rest.split('/').next().unwrap_or_default();
    if is_test_path(&source.path) {
        return;
    }
    for rule in &RESERVED {
        if rule.crates.contains(&krate) {
            continue;
        }
        for at in places(&source.product, rule.word) {
            let rest = &source.product[at + rule.word.len()..];
            if !rule.except.iter().any(|except| rest.starts_with(except)) {
                findings.push(Finding::new(
                    source,
                    at,
                    format!("`{}`: {}", rule.word, rule.why),
                ));
            }
        }
    }
}

/// An engine's name, or the beginning of its counters' names, in `kv`.
fn find_engine_names(source: &Source, findings: &mut Vec<Finding>) {
    if !source.path.starts_with("crates/kv/") {
        return;
    }
    for word in ENGINE_NAMES {
        for at in places(&source.text, word) {
            let what = format!("`{word}`: `kv` names no engine");
            findings.push(Finding::new(source, at, what));
        }
    }
}

/// Where a word stands as a word of its own.
pub(super) fn places(text: &str, word: &str) -> Vec<usize> {
    let in_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let bytes = text.as_bytes();
    let free = |at: &usize| {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        let closed = !in_word(word.as_bytes().last()) || !in_word(bytes.get(at + word.len()));
        !in_word(before) && closed
    };
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(free)
        .collect()
}

/// End of the bracketed group at `open`.
fn group_end(code: &[u8], open: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, byte) in code[open..].iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return open + offset + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<usize> {
        check(&[Source::new(path, text)])
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn non_ascii_source_is_found() {
        assert_eq!(findings("crates/a/src/lib.rs", "\n// \u{3b5}\n"), [2]);
        assert!(findings("README.md", "\u{3b5}").is_empty());
    }

    #[test]
    fn leftovers_are_found() {
        let word = concat!("TO", "DO");
        let text = format!("// {word}: later\nfn f() {{ dbg!(1); }}\nfn g() {{ todo!() }}\n");
        assert_eq!(findings("crates/a/src/lib.rs", &text), [1, 2, 3]);
        assert!(findings("crates/a/src/lib.rs", "// \"dbg!\"\nlet s = \"todo!\";").is_empty());
    }

    #[test]
    fn a_dropped_matches_is_found() {
        let text = "fn f() {\n    matches!(a, Some((1, _)));\n    assert!(matches!(a, None));\n    \
                    let b = matches!(a, None);\n    matches!(a, None)\n}\n";
        assert_eq!(findings("crates/a/src/lib.rs", text), [2]);
    }

    #[test]
    fn a_crate_wide_allow_is_found() {
        assert_eq!(
            findings("crates/a/src/lib.rs", "\n#![allow(dead_code)]\n"),
            [2]
        );
    }

    #[test]
    fn storage_io_outside_the_device_is_found() {
        let text = "use std::fs::File;\n";
        assert_eq!(findings("crates/vt/src/lib.rs", text), [1]);
        assert!(findings("crates/device/src/lib.rs", text).is_empty());
        assert!(findings("crates/vt/tests/all.rs", text).is_empty());
        let test = format!("#[cfg(test)]\nmod tests {{\n{text}}}\n");
        assert!(findings("crates/vt/src/lib.rs", &test).is_empty());
    }

    #[test]
    fn printing_outside_the_command_is_found() {
        let text = "fn f() {\n println!(\"x\");\n eprintln!(\"x\");\n}\n";
        assert_eq!(findings("crates/fs/src/lib.rs", text), [2, 3]);
        assert!(findings("crates/stitchfs/src/main.rs", text).is_empty());
        assert!(findings("xtask/src/main.rs", text).is_empty());
    }

    #[test]
    fn an_engine_that_the_contract_names_is_found() {
        let text = "use stitch_vt::VtEngine;\nconst A: &str = \"vt.stitched_bytes\";\n";
        assert_eq!(findings("crates/kv/src/counters.rs", text), [1, 2]);
        assert_eq!(findings("crates/kv/tests/all.rs", text), [1, 2]);
        assert!(findings("crates/vt/src/counters.rs", text).is_empty());
        assert!(findings("crates/kv/src/a.rs", "const A: &str = \"kv.gets\";\n").is_empty());
    }

    #[test]
    fn clocks_and_threads_outside_base_are_found() {
        let text = "use std::thread;\nfn f(h: std::thread::JoinHandle<()>) { Instant::now(); }\n\
                    fn g() { stitch_base::thread::spawn(\"a\", f); }\n";
        assert_eq!(
            findings("crates/fs/src/lib.rs", text),
            [2, 1].map(|line| line)
        );
        assert!(findings("crates/base/src/clock.rs", text).is_empty());
    }
}
