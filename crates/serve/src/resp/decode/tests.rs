use super::*;
use proptest::prelude::*;

/// Decodes all of `input`, of which more and more is shown, cut at these places.
fn decode_cut(input: &[u8], cuts: &[usize]) -> Result<Vec<Vec<Vec<u8>>>, &'static str> {
    let mut commands = Vec::new();
    let mut decoder = Decoder::default();
    let (mut begin, mut shown) = (0, 0);
    let mut cuts = cuts.to_vec();
    cuts.push(input.len());
    for cut in cuts {
        shown = shown.max(cut.min(input.len()));
        loop {
            match decoder.decode(&input[begin..shown], Limits::FULL) {
                Decoded::Command(len) => {
                    let args = decoder.args(&input[begin..shown]).map(<[u8]>::to_vec);
                    commands.push(args.collect());
                    decoder.reset();
                    begin += len;
                }
                Decoded::More => break,
                Decoded::Wrong(wrong) => return Err(wrong),
            }
        }
    }
    assert_eq!(begin, input.len(), "all of it is commands");
    Ok(commands)
}

fn encode(commands: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut out = Vec::new();
    for command in commands {
        out.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for arg in command {
            out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            out.extend_from_slice(arg);
            out.extend_from_slice(b"\r\n");
        }
    }
    out
}

fn wrong(input: &[u8]) -> bool {
    let decoded = Decoder::default().decode(input, Limits::FULL);
    matches!(decoded, Decoded::Wrong(_))
}

proptest! {
    #[test]
    fn commands_are_the_same_wherever_they_are_cut(
        commands in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5), 0..5),
        mut cuts in prop::collection::vec(0usize..400, 0..10),
    ) {
        cuts.sort_unstable();
        let input = encode(&commands);
        prop_assert_eq!(decode_cut(&input, &cuts), Ok(commands));
    }

    #[test]
    fn any_bytes_give_a_command_an_error_or_a_wait(input in prop::collection::vec(
        prop::sample::select(b"*$0123-\r\n \"'x\\".to_vec()), 0..60))
    {
        let mut decoder = Decoder::default();
        match decoder.decode(&input, Limits::FULL) {
            Decoded::Command(len) => {
                prop_assert!(len > 0 && len <= input.len());
                prop_assert_eq!(decoder.args(&input).count(), decoder.count());
            }
            Decoded::More | Decoded::Wrong(_) => {}
        }
    }
}

#[test]
fn hostile_lengths_are_refused_before_anything_is_allocated() {
    for input in [
        &b"*1048577\r\n"[..],
        b"*99999999999999999999\r\n",
        b"*x\r\n",
        b"*\r\n",
        b"*1\r\n$8388609\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$+1\r\na\r\n",
        b"*1\r\n$9223372036854775807\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n$1\r\nabc",
    ] {
        assert!(wrong(input), "{}", input.escape_ascii());
    }
    assert!(wrong(&[b'a'; LINE_BYTES_MAX]), "an endless line");
    let mut endless = b"*1\r\n$".to_vec();
    endless.resize(LINE_BYTES_MAX + 8, b'1');
    assert!(wrong(&endless), "an endless length");
    let mut decoder = Decoder::default();
    let waits = decoder.decode(b"*1048576\r\n", Limits::FULL);
    assert_eq!(waits, Decoded::More);
    assert_eq!(decoder.args.capacity(), 0);
}

#[test]
fn a_command_has_a_largest_size() {
    let mut input = b"*9\r\n".to_vec();
    for _ in 0..8 {
        input.extend_from_slice(b"$8388608\r\n");
        input.resize(input.len() + BULK_BYTES_MAX, b'a');
        input.extend_from_slice(b"\r\n");
    }
    assert!(wrong(&input));
}

#[test]
fn without_a_password_less_is_taken() {
    let decode = |input: &[u8]| Decoder::default().decode(input, Limits::BEFORE_AUTH);
    assert!(matches!(decode(b"*11\r\n"), Decoded::Wrong(_)));
    assert!(matches!(decode(b"*1\r\n$16385\r\n"), Decoded::Wrong(_)));
    assert_eq!(decode(b"*10\r\n$16384\r\n"), Decoded::More);
}

#[test]
fn inline_commands_have_words_and_quotes() {
    let words = |line: &[u8]| decode_cut(line, &[3]).map(|commands| commands.concat());
    let expected: Vec<Vec<u8>> = vec![b"SET".to_vec(), b"a b".to_vec(), b"\x01'\n".to_vec()];
    assert_eq!(words(b"SET \"a b\" \"\\x01'\\n\"\r\n"), Ok(expected));
    assert_eq!(words(b"PING\n"), Ok(vec![b"PING".to_vec()]));
    assert_eq!(
        words(b"a 'b\\'c'\r\n").map(|w| w[1].clone()),
        Ok(b"b'c".to_vec())
    );
    assert_eq!(words(b"\r\n"), Ok(vec![]));
    assert!(words(b"GET \"a\r\n").is_err());
    assert!(words(b"GET \"a\"b\r\n").is_err());
}

#[test]
fn empty_arrays_are_commands_without_words() {
    assert_eq!(decode_cut(b"*0\r\n*-1\r\n", &[]), Ok(vec![vec![], vec![]]));
}
