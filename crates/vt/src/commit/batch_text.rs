//! Batches as text, for tests.
//!
//! A message is `[lent:][tree.]key[len][~][#name]`: a put of `len` bytes, `~` if they are partial,
//! with the name of its write stream; without a length a delete. Trees are 1 unless told.
//!
//! ```text
//! x   a300   2.b4096#7   lent:c300   d512~#7
//! ```

use stitch_base::TreeId;
use stitch_kv::{Batch, StreamName};

static ZEROS: [u8; 1 << 17] = [0; 1 << 17];

/// Makes a batch from its text.
pub(super) fn batch_of(text: &str) -> Batch<'static> {
    let mut batch = Batch::new();
    for message in text.split_whitespace() {
        push(&mut batch, message);
    }
    batch
}

fn push(batch: &mut Batch<'static>, message: &str) {
    let (rest, name) = match message.split_once('#') {
        Some((rest, name)) => (rest, Some(StreamName(number(name)))),
        None => (message, None),
    };
    let (rest, is_lent) = match rest.strip_prefix("lent:") {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let (tree, rest) = match rest.split_once('.') {
        Some((tree, rest)) => (TreeId(u32::try_from(number(tree)).expect("small")), rest),
        None => (TreeId(1), rest),
    };
    let (rest, is_partial) = match rest.strip_suffix('~') {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let key_end = rest.find(|letter: char| letter.is_ascii_digit());
    let (key, len) = rest.split_at(key_end.unwrap_or(rest.len()));
    let value = |len| &ZEROS[..usize::try_from(number(len)).expect("small")];
    match (len, is_partial) {
        ("", _) => batch.delete(tree, key.as_bytes()),
        (len, true) => batch.put_partial(tree, key.as_bytes(), value(len)),
        (len, false) if is_lent => batch.put_borrowed(tree, key.as_bytes(), value(len)),
        (len, false) => batch.put(tree, key.as_bytes(), value(len)),
    }
    if let Some(name) = name {
        batch.name_stream(name);
    }
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text:?} is a number"))
}
