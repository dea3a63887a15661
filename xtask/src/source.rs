//! Source files for tidy: the text, and the same text without comments, strings and tests.
//!
//! This is a lexer of a few rules, not a parser. What it blanks becomes spaces, so positions and
//! line numbers stay those of the file.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// One file of the workspace.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// The file as it is.
    pub(crate) text: String,
    /// Rust only: comments, strings and character literals are blank.
    pub(crate) code: String,
    /// Rust only: `code`, with items under `#[cfg(test)]` blank too.
    pub(crate) product: String,
}

impl Source {
    /// Creates a file of this content. The lexer runs over `.rs` files only.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") {
            blank_literals(text)
        } else {
            String::new()
        };
        let product = if is_test_path(path) {
            String::new()
        } else {
            blank_tests(&code)
        };
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code,
            product,
        }
    }

    /// Files of these paths and contents.
    #[cfg(test)]
    pub(crate) fn all(files: &[(&str, &str)]) -> Vec<Self> {
        let files = files.iter();
        files.map(|(path, text)| Self::new(path, text)).collect()
    }

    /// Folder of the package that the file belongs to, as `crates/fs` or `xtask`.
    pub(crate) fn krate(&self) -> &str {
        let depth = match self.path.split('/').next() {
            Some("crates" | "testing") => 2,
            _ => 1,
        };
        let mut ends = self.path.match_indices('/').map(|(at, _)| at);
        ends.nth(depth - 1).map_or("", |end| &self.path[..end])
    }

    /// Line number, from 1, of a byte position.
    pub(crate) fn line_of(&self, at: usize) -> usize {
        self.text.as_bytes()[..at]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count()
            + 1
    }
}

/// Reports whether a whole file is test code, by its path.
pub(crate) fn is_test_path(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/benches/")
}

/// Reads all text files of the workspace that tidy looks at, in path order.
pub(crate) fn load(root: &Path) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    collect(root, root, &mut paths)?;
    paths.sort();
    let mut sources = Vec::new();
    for path in paths {
        let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        sources.push(Source::new(&path, &text));
    }
    blank_test_files(&mut sources);
    Ok(sources)
}

/// Clears the product of files that only a `#[cfg(test)] mod x;` imports, and of those below.
pub(crate) fn blank_test_files(sources: &mut [Source]) {
    let stems: Vec<String> = sources.iter().flat_map(test_module_stems).collect();
    for source in sources {
        let below = |stem: &String| {
            let rest = source.path.strip_prefix(stem.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        if stems.iter().any(below) {
            source.product.clear();
        }
    }
}

/// Paths, without `.rs`, of the modules that a file imports for tests only.
fn test_module_stems(source: &Source) -> Vec<String> {
    let (parent, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let folder = match file {
        "lib.rs" | "main.rs" => parent.to_owned(),
        _ => source.path.trim_end_matches(".rs").to_owned(),
    };
    let module = |(at, _): (usize, &str)| {
        let item = &source.code[at..item_end(source.code.as_bytes(), at)];
        let (_, name) = item.strip_suffix(';')?.rsplit_once("mod ")?;
        Some(format!("{folder}/{}", name.trim()))
    };
    source
        .code
        .match_indices("#[cfg(test)]")
        .filter_map(module)
        .collect()
}

fn collect(root: &Path, dir: &Path, paths: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        if kind.is_dir() && !matches!(name.as_str(), "target" | ".git" | "mnt" | "corpus") {
            collect(root, &path, paths)?;
        } else if kind.is_file() && is_text(&name) {
            let relative = path.strip_prefix(root).expect("walked from the root");
            paths.push(relative.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn is_text(name: &str) -> bool {
    [".rs", ".toml", ".md", ".sh", ".txt"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Blanks comments, strings and character literals.
fn blank_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' | b'b' | b'c' if !follows_word(bytes, at) => raw_string_end(bytes, at),
            b'\'' => char_end(bytes, at),
            _ => at,
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // Multi-byte characters outside literals stay whole: only bytes within spans were replaced,
    // and spans begin and end at ASCII.
    String::from_utf8(out).expect("spans cover whole characters")
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    let length = bytes[at..].iter().position(|&byte| byte == b'\n');
    length.map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// End of `r"..."`, `br#"..."#`, `b"..."` and the like; `start` if there is none.
fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < bytes.len() && matches!(bytes[at], b'r' | b'b' | b'c') && at - start < 2 {
        at += 1;
    }
    let raw = bytes[start..at].contains(&b'r');
    let hashes = bytes[at..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return start;
    }
    if !raw {
        return if hashes == 0 {
            string_end(bytes, at)
        } else {
            start
        };
    }
    let closing = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = at + hashes + 1;
    let length = bytes[body..]
        .windows(closing.len())
        .position(|window| window == closing);
    length.map_or(bytes.len(), |length| body + length + closing.len())
}

/// End of a character literal; `start` if the quote opens a lifetime.
fn char_end(bytes: &[u8], start: usize) -> usize {
    let rest = &bytes[start + 1..];
    if rest.first() == Some(&b'\\') {
        let closing = rest.iter().skip(2).position(|&byte| byte == b'\'');
        return closing.map_or(start, |length| start + length + 4);
    }
    let width = match rest.first() {
        Some(byte) if byte.is_ascii() => 1,
        Some(byte) => byte.leading_ones() as usize,
        None => return start,
    };
    if rest.get(width) == Some(&b'\'') {
        start + width + 2
    } else {
        start
    }
}

/// Blanks the items that follow `#[cfg(test)]`.
fn blank_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(test)]") {
        let start = from + found;
        let end = item_end(code.as_bytes(), start);
        for byte in &mut out[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        from = end;
    }
    String::from_utf8(out).expect("items begin and end at ASCII")
}

/// End of the item at `start`: its closing brace, or its semicolon if that comes before any brace.
pub(crate) fn item_end(code: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut brackets = 0_usize;
    for (offset, byte) in code[start..].iter().enumerate() {
        match byte {
            b'[' | b'(' => brackets += 1,
            b']' | b')' => brackets = brackets.saturating_sub(1),
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return start + offset + 1;
                }
            }
            b';' if depth == 0 && brackets == 0 => return start + offset + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_blank() {
        let text = "let a = \"x // y\"; // z\nlet b = r#\"q\"w\"#; /* u /* v */ w */ let c = '\"'; \
                    fn f<'a>(s: &'a str) {} let d = b'\\''; let e = \"\\\"\"; end";
        let code = Source::new("a.rs", text).code;
        assert_eq!(code.len(), text.len());
        for gone in ["x", "y", "z", "q", "w", "u", "v", "\""] {
            assert!(!code.contains(gone), "{gone} in {code}");
        }
        for kept in [
            "let a =",
            "let b =",
            "let c =",
            "fn f<'a>(s: &'a str) {}",
            "let d",
            "end",
        ] {
            assert!(code.contains(kept), "{kept} not in {code}");
        }
    }

    #[test]
    fn test_items_are_blank_in_the_product() {
        let source = Source::new(
            "a.rs",
            "fn kept() {}\n#[cfg(test)]\nmod tests {\n fn gone() { if x {} }\n}\n\
             #[cfg(test)]\nuse gone;\nfn last() {}\n",
        );
        assert!(source.product.contains("kept") && source.product.contains("last"));
        assert!(!source.product.contains("gone"));
        assert_eq!(source.product.lines().count(), source.text.lines().count());
    }

    #[test]
    fn files_imported_for_tests_are_no_product() {
        let mut sources = [
            Source::new(
                "crates/a/src/lib.rs",
                "#[cfg(test)]\npub(crate) mod testing;\nmod b;\n",
            ),
            Source::new("crates/a/src/testing.rs", "mod more;"),
            Source::new("crates/a/src/testing/more.rs", "fn f() {}"),
            Source::new(
                "crates/a/src/b.rs",
                "#[cfg(test)]\nmod check;\nfn kept() {}",
            ),
            Source::new("crates/a/src/b/check.rs", "fn f() {}"),
        ];
        blank_test_files(&mut sources);
        let products = sources.map(|source| !source.product.is_empty());
        assert_eq!(products, [true, false, false, true, false]);
    }

    #[test]
    fn a_file_belongs_to_the_package_of_its_folder() {
        let krate = |path: &str| Source::new(path, "").krate().to_owned();
        assert_eq!(krate("crates/fs/src/a/b.rs"), "crates/fs");
        assert_eq!(krate("testing/sim/tests/a.rs"), "testing/sim");
        assert_eq!(krate("bench/src/main.rs"), "bench");
        assert_eq!(krate("Cargo.toml"), "");
    }

    #[test]
    fn lines_count_from_one() {
        let source = Source::new("a.rs", "a\nb\nc");
        assert_eq!(source.line_of(0), 1);
        assert_eq!(source.line_of(4), 3);
    }
}
