//! The beginnings of keys as numbers, which are compared faster than keys.

/// Bytes of a key that are in its prefix.
pub(crate) const PREFIX_BYTES: usize = size_of::<u64>();

/// The first bytes of a key, zeros after its end. Keys whose prefixes differ are in the order of these.
pub(crate) fn prefix_of(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<PREFIX_BYTES>() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; PREFIX_BYTES];
    first[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_order_as_keys_do() {
        let keys: [&[u8]; 8] = [
            b"",
            b"\0",
            b"\0a",
            b"a",
            b"a\0",
            b"abcdefgh",
            b"abcdefghi",
            b"b",
        ];
        for pair in keys.windows(2) {
            assert!(prefix_of(pair[0]) <= prefix_of(pair[1]), "{pair:?}");
        }
        assert!(prefix_of(b"abcdefgh") < prefix_of(b"b"));
    }
}
