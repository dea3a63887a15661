//! Lines of changes: `put KEY VALUE`, `del KEY`.

use super::from_hex;
use anyhow::{Context, Result, bail};

/// Returns the commands that the lines stand for. Empty lines and those that begin with `#` are
/// none.
pub(super) fn parse(text: &[u8], is_hex: bool) -> Result<Vec<Vec<Vec<u8>>>> {
    let mut commands = Vec::new();
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let command = parse_line(line, is_hex).with_context(|| format!("line {number}"))?;
        commands.push(command);
    }
    Ok(commands)
}

fn parse_line(line: &[u8], is_hex: bool) -> Result<Vec<Vec<u8>>> {
    let words = stitch_serve::split_words(line).context("a quote has no end")?;
    let mut words = words.into_iter();
    let name = match words.next().as_deref() {
        Some(b"put") => b"SET".to_vec(),
        Some(b"del") => b"DEL".to_vec(),
        _ => bail!("neither \"put KEY VALUE\" nor \"del KEY\""),
    };
    let count = if name == b"SET" { 2 } else { 1 };
    let mut command = vec![name];
    for word in words {
        command.push(if is_hex { from_hex(&word)? } else { word });
    }
    if command.len() != count + 1 {
        bail!("neither \"put KEY VALUE\" nor \"del KEY\"");
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands() {
        let commands = parse(b"# a\nput a \"b c\"\n\n  del a \n", false).unwrap();
        let expected: [&[&[u8]]; 2] = [&[b"SET", b"a", b"b c"], &[b"DEL", b"a"]];
        assert_eq!(commands, expected);
        let commands = parse(b"put 61 00ff", true).unwrap();
        assert_eq!(commands, [[&b"SET"[..], b"a", b"\0\xff"]]);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for wrong in ["put a", "del a b", "get a", "put \"a b", "put a b c"] {
            let text = format!("del x\n{wrong}\n");
            let error = parse(text.as_bytes(), false).unwrap_err().to_string();
            assert_eq!(error, "line 2", "{wrong}");
        }
    }
}
