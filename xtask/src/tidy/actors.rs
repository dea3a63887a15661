//! Words that hide the actor of a sentence, such as `somebody` and `nobody`: a reader, a process or
//! a commit has a name of its own. Comments, docs, strings, pages and names of functions are held
//! to it.
//!
//! Allowed are a quotation of the word (in backticks, or as a whole string), and `nobody` as the
//! name of a user, which these words before it show:
//!
//! ```text
//! chown the user nobody      sudo -u nobody      uid=nobody
//! ```

use super::ratchet::Kind;
use crate::source::Source;

/// The words, in lower case.
const WORDS: [&str; 8] = [
    "somebody",
    "nobody",
    "whoever",
    "anybody",
    "everybody",
    "anyone",
    "someone",
    "everyone",
];
/// Pairs of words, in lower case, that may stand on two lines.
const PAIRS: [(&str, &str); 2] = [("for", "who"), ("of", "whom")];
/// The word that is a user's name as well.
const USER: &str = "nobody";
/// Words before it that say so.
const BEFORE_USER: [&str; 5] = ["user", "owner", "id", "uid", "u"];
/// Files that have the rule.
const ENDINGS: [&str; 4] = [".rs", ".md", ".toml", ".sh"];

/// Finds the words in the text of a file, and in its names of functions.
pub(super) fn find(source: &Source, add: &mut impl FnMut(Kind, usize, String)) {
    if !ENDINGS.iter().any(|ending| source.path.ends_with(ending)) {
        return;
    }
    let mut found = |at, word: &str| {
        let what = format!("`{word}` hides the actor: name the reader, process, user or commit");
        add(Kind::Actor, source.line_of(at), what);
    };
    let mut last: Option<Word<'_>> = None;
    for word in words(&source.text) {
        if WORDS.iter().any(|banned| word.is(banned)) {
            if !is_quoted(&source.text, &word) && !is_user(&source.text, last.as_ref(), &word) {
                found(word.at, word.text);
            }
        } else if let Some(first) = last.filter(|last| is_pair(&source.text, last, &word)) {
            found(first.at, &format!("{} {}", first.text, word.text));
        }
        if let Some(hidden) = last.filter(|last| last.text == "fn" && last.is_code(source)) {
            debug_assert!(hidden.at < word.at, "words come in order");
            for part in word.text.split('_') {
                if part != word.text && WORDS.contains(&part) {
                    found(word.at, part);
                }
            }
        }
        last = Some(word);
    }
}

/// Letters, digits and `_` between others, and their position.
#[derive(Clone, Copy, Debug)]
struct Word<'a> {
    at: usize,
    text: &'a str,
}

impl Word<'_> {
    fn end(&self) -> usize {
        self.at + self.text.len()
    }

    /// Reports whether it is this word of lower case, at the beginning of a sentence or within. A
    /// constant in capitals is another word.
    fn is(&self, lower: &str) -> bool {
        let rest = |text: &str| text.get(1..).map(str::to_owned);
        self.text.eq_ignore_ascii_case(lower) && rest(self.text) == rest(lower)
    }

    /// Reports whether it stands outside of comments and strings.
    fn is_code(&self, source: &Source) -> bool {
        source.code.get(self.at..self.end()) == Some(self.text)
    }
}

fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    let in_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let parts = text.split(move |letter| !in_word(letter));
    let start = text.as_ptr() as usize;
    parts.filter(|part| !part.is_empty()).map(move |part| Word {
        at: part.as_ptr() as usize - start,
        text: part,
    })
}

/// Reports whether the word is all that stands in backticks or in a string.
fn is_quoted(text: &str, word: &Word<'_>) -> bool {
    let (before, after) = (&text[..word.at], &text[word.end()..]);
    ['`', '"']
        .iter()
        .any(|&quote| before.ends_with(quote) && after.starts_with(quote))
}

/// Reports whether the word is a user's name, by the word before it in the same sentence.
fn is_user(text: &str, before: Option<&Word<'_>>, word: &Word<'_>) -> bool {
    let Some(before) = before.filter(|before| BEFORE_USER.contains(&before.text)) else {
        return false;
    };
    let between = &text[before.end()..word.at];
    word.text == USER && (between == "=" || is_gap(between))
}

fn is_pair(text: &str, first: &Word<'_>, second: &Word<'_>) -> bool {
    let banned = PAIRS
        .iter()
        .any(|(one, other)| first.is(one) && second.is(other));
    banned && is_gap(&text[first.end()..second.at])
}

/// Reports whether only blanks, and the marks of a comment that goes on, are between two words.
fn is_gap(between: &str) -> bool {
    let is_mark = |letter: char| letter.is_whitespace() || "/!#*>".contains(letter);
    !between.is_empty() && between.chars().all(is_mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of findings. `@` in the text stands for the word, which this file must not have.
    fn lines(path: &str, text: &str, word: &str) -> Vec<usize> {
        let source = Source::new(path, &text.replace('@', word));
        let mut lines = Vec::new();
        find(&source, &mut |kind, line, what| {
            assert_eq!(kind, Kind::Actor);
            assert!(what.contains("hides the actor"), "{what}");
            lines.push(line);
        });
        lines
    }

    #[test]
    fn the_words_are_found_in_comments_docs_strings_and_pages() {
        let text =
            "//! For @.\n\n/// As @ says.\nfn f() {\n    // @ waits.\n    panic!(\"@ asks\");\n}\n";
        for word in WORDS {
            assert_eq!(lines("crates/a/src/lib.rs", text, word), [1, 3, 5, 6]);
            assert_eq!(
                lines("docs/adr/0001-a.md", "# A\n\n| @ waits |\n", word),
                [3]
            );
            assert_eq!(lines("a/Cargo.toml", "# @ needs it\n", word), [1]);
        }
    }

    #[test]
    fn a_word_at_the_beginning_of_a_sentence_is_found_and_a_constant_is_not() {
        let mut letters = USER.chars();
        let first = letters.next().unwrap().to_ascii_uppercase();
        let capital = format!("{first}{}", letters.as_str());
        assert_eq!(lines("a.md", "@ waits.\n", &capital), [1]);
        let constant = USER.to_ascii_uppercase();
        assert!(lines("a.rs", "// By @, who\nacting_as(@);\n", &constant).is_empty());
    }

    #[test]
    fn pairs_are_found_over_the_end_of_a_line_of_a_comment() {
        for (first, second) in PAIRS {
            let text =
                format!("fn f() {{}}\n/// Made @ {second} reads.\n/// Made @\n/// {second}.\n");
            assert_eq!(lines("a.rs", &text, first), [2, 3], "{first} {second}");
            let apart =
                format!("// What @? {second} reads.\n// {second} @ it.\n// @\n\"{second}\"\n");
            assert!(lines("a.rs", &apart, first).is_empty(), "{first} {second}");
        }
    }

    #[test]
    fn names_of_functions_are_held_to_it() {
        let text = "fn a_list_is_for_@() {}\nlet as_@ = 1;\n// `fn as_@`: see a_list_is_for_@\n";
        assert_eq!(lines("a.rs", text, USER), [1]);
        assert!(lines("a.md", "See a.rs::a_list_is_for_@.\n", USER).is_empty());
    }

    #[test]
    fn a_quotation_of_the_word_is_fine() {
        assert!(lines("a.md", "The word `@` is banned.\n", "somebody").is_empty());
        assert!(lines("a.rs", "const A: &str = \"@\";\n", "somebody").is_empty());
        assert_eq!(lines("a.md", "As `@ says` it.\n", "somebody"), [1]);
    }

    #[test]
    fn the_name_of_a_user_is_fine() {
        let text = "show the owner\n@, who\nsudo -u @ true\n(\"uid=@\", 1)\n";
        assert!(lines("a.rs", text, USER).is_empty());
        assert_eq!(
            lines("a.rs", "// no user: @ has it\n// user. @ has it\n", USER),
            [1, 2]
        );
        assert_eq!(lines("a.md", "the owner @ has\n", "someone"), [1]);
    }

    #[test]
    fn other_files_are_left_out() {
        assert!(lines("crates/a/testdata/a.txt", "@ waits\n", "somebody").is_empty());
    }
}
