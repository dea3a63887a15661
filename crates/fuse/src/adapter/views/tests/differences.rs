//! Requests for differences, without a kernel.

use super::*;
use crate::differences::ASK;

/// So many names that a walk would not be better.
const MANY: usize = 600;
const ROOM: usize = 16_380;

impl Setup {
    /// Asks for differences of a directory; the words of the answer.
    fn differences(&self, uid: u32, dir: Ino, words: &str) -> Answer<Vec<String>> {
        let input = format!("{words}\0").replace(' ', "\0");
        let args = Ioctl {
            fh: Fh(0),
            flags: 0,
            command: ASK,
            arg: 0,
            input: input.as_bytes(),
            output_size: 0,
        };
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, ROOM);
        self.views.ioctl(&context(uid), dir, &args, &mut sink)?;
        let text = String::from_utf8(out[4..].to_vec()).unwrap();
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }

    /// The number of a snapshot's directory.
    fn place(&self, name: &str) -> Ino {
        let found = self.lookup(self.snapshots(), name.as_bytes());
        found.unwrap().unwrap().ino
    }
}

/// A directory with many names, and its snapshot `old`.
fn many() -> (Setup, Ino) {
    let setup = setup();
    let dir = setup.dir(b"many");
    for number in 0..MANY {
        setup.file(dir, number.to_string().as_bytes(), b"1");
    }
    setup.create(0, dir, "old").unwrap();
    (setup, dir)
}

#[test]
fn changes_since_a_snapshot_and_between_two_are_told() {
    let (setup, dir) = many();
    let list = format!("list {}", setup.place("old").0);
    assert_eq!(setup.differences(0, dir, &list).unwrap()[1..], ["0"]);
    setup.file(dir, b"new", b"1");
    setup.create(0, dir, "later").unwrap();
    let later = setup.place("later");
    setup.file(dir, b"newer", b"1");
    let told = setup.differences(0, dir, &list).unwrap();
    assert_eq!(told[1..], ["2", "+", "new", "", "+", "newer", ""]);
    let told = setup.differences(0, later, &list).unwrap();
    assert_eq!(told[1..], ["1", "+", "new", ""]);
}

#[test]
fn long_lists_come_in_parts() {
    let (setup, dir) = many();
    let list = format!("list {}", setup.place("old").0);
    let long = |number: usize| format!("{number:0>200}");
    for number in 0..150 {
        setup.file(dir, long(number).as_bytes(), b"1");
    }
    let mut words = setup.differences(0, dir, &list).unwrap();
    let number = words[0].clone();
    let mut told: Vec<String> = Vec::new();
    let mut parts = 1;
    loop {
        assert_eq!((&words[0], &*words[1]), (&number, "150"));
        told.extend(words[2..].chunks(3).map(|change| change[1].clone()));
        if told.len() == 150 {
            break;
        }
        let more = format!("more {number} {}", told.len());
        words = setup.differences(0, dir, &more).unwrap();
        parts += 1;
    }
    assert!(parts > 1, "it does not fit in one answer");
    assert_eq!(told, (0..150).map(long).collect::<Vec<_>>());
    let more = format!("more {number} 0");
    let forgotten = setup.differences(0, dir, &more);
    assert_eq!(forgotten, Err(Errno::ESTALE), "it was told to its end");
}

#[test]
fn what_is_no_comparison_of_one_directory_is_refused() {
    let (setup, dir) = many();
    let old = setup.place("old");
    let list = format!("list {}", old.0);
    let ask = |dir, words: &str| setup.differences(0, dir, words);
    assert_eq!(ask(ROOT, &list), Err(Errno::EINVAL), "another directory");
    assert_eq!(ask(dir, &format!("list {}", dir.0)), Err(Errno::EINVAL));
    assert_eq!(ask(dir, "nonsense 7"), Err(Errno::EINVAL));
    assert_eq!(ask(dir, "more 7 0"), Err(Errno::ESTALE));
    let few = setup.dir(b"few");
    setup.create(0, few, "few").unwrap();
    let list_few = format!("list {}", setup.place("few").0);
    assert_eq!(ask(few, &list_few), Err(Errno::ENOTSUP), "a walk is better");
    setup.file(dir, b"new", b"1");
    let refused = setup.differences(OTHER, dir, &list);
    assert_eq!(refused, Err(Errno::EPERM), "another user");
    setup.delete(0, "old").unwrap();
    assert_eq!(ask(dir, &list), Err(Errno::ESTALE), "it is gone");
}

#[test]
fn paths_for_a_copy_are_told_of_both_moments() {
    let (setup, dir) = many();
    let paths = format!("paths {}", setup.place("old").0);
    assert_eq!(setup.differences(0, dir, &paths).unwrap()[1..], ["0"]);
    setup.file(dir, b"new", b"1");
    let file = setup.lookup(dir, b"7").unwrap().unwrap().ino;
    let fs = setup.views.mainline.fs();
    fs.write(file, 0, b"2", Default::default()).unwrap();
    let told = setup.differences(0, dir, &paths).unwrap();
    assert_eq!(told[1..], ["3", "-", "7", "", "+", "7", "", "+", "new", ""]);
    let refused = setup.differences(OTHER, dir, &paths);
    assert_eq!(refused, Err(Errno::EPERM), "another user");
}

/// A source, a clone of it that is changed, and a clone that lies in another directory.
#[test]
fn clones_are_compared_with_their_sources() {
    let (setup, dir) = many();
    let copy = setup.clone_to(dir, ROOT, b"copy").unwrap().ino;
    setup.mkdir(0, copy, b"new").unwrap();
    let list = |old: Ino| format!("list {}", old.0);
    let told = setup.differences(0, copy, &list(dir)).unwrap();
    assert_eq!(told[1..], ["1", "+", "new", ""]);
    let told = setup.differences(0, dir, &list(copy)).unwrap();
    assert_eq!(told[1..], ["1", "-", "new", ""]);
    let told = setup
        .differences(0, copy, &list(setup.place("old")))
        .unwrap();
    assert_eq!(told[1..], ["1", "+", "new", ""]);
    let refused = setup.differences(OTHER, copy, &list(dir));
    assert_eq!(refused, Err(Errno::EPERM), "another user");
    let refused = setup.differences(0, copy, &list(copy));
    assert_eq!(refused, Err(Errno::EINVAL), "there is one side");
    let paths = format!("paths {}", dir.0);
    let refused = setup.differences(0, copy, &paths);
    assert_eq!(refused, Err(Errno::ENOTSUP), "older programs know no twins");
    let paths = format!("copy {}", dir.0);
    let told = setup.differences(0, copy, &paths).unwrap();
    assert_eq!(told[1..], ["1", "+", "new", ""]);
    let refused = setup.differences(OTHER, copy, &paths);
    assert_eq!(refused, Err(Errno::EPERM), "another user");
}

#[test]
fn a_user_compares_clones_after_both_sides_were_shown() {
    let (setup, dir) = many();
    let own = SetAttr {
        uid: Some(OTHER),
        ..SetAttr::default()
    };
    setup.fs.set_attr(&SUPER, dir, &own).unwrap();
    let copy = setup.clone_to(dir, ROOT, b"copy").unwrap().ino;
    setup.mkdir(OTHER, copy, b"new").unwrap();
    let list = format!("list {}", dir.0);
    let ask = |uid| setup.differences(uid, copy, &list);
    let show = |uid, dir| setup.differences(uid, dir, "show 0").unwrap();
    assert_eq!(ask(OTHER), Err(Errno::EPERM), "one side is open");
    assert_eq!(show(OTHER, dir), [""; 0]);
    assert_eq!(ask(OTHER + 1), Err(Errno::EPERM), "another user");
    assert_eq!(ask(OTHER).unwrap()[1..], ["1", "+", "new", ""]);
    assert_eq!(ask(OTHER), Err(Errno::EPERM), "it was for one comparison");
    show(OTHER, copy);
    assert_eq!(ask(OTHER), Err(Errno::EPERM), "the other directory");
    // What is different is in a directory of another user.
    let inner = setup.mkdir(0, copy, b"inner").unwrap().ino;
    setup.mkdir(0, inner, b"hidden").unwrap();
    show(OTHER, dir);
    assert_eq!(ask(OTHER), Err(Errno::EPERM));
}

#[test]
fn clones_that_belong_together_are_told_to_a_walk() {
    let (setup, dir) = many();
    let few = setup.dir(b"few");
    let inner = setup.clone_to(few, dir, b"inner").unwrap().ino;
    setup.create(0, dir, "with").unwrap();
    let copy = setup.clone_to(dir, ROOT, b"copy").unwrap().ino;
    let other = setup.lookup(copy, b"inner").unwrap().unwrap().ino;
    let late = setup.clone_to(few, dir, b"late").unwrap().ino;
    let base = |ino: Ino| (ino.0 >> 44 << 44).to_string();
    let ask = |dir, old: Ino, from| setup.differences(0, dir, &format!("pairs {} {from}", old.0));
    let pair = ["1", &*base(inner), &*base(other)];
    assert_eq!(ask(copy, dir, 0).unwrap(), pair);
    assert_eq!(ask(copy, setup.place("with"), 0).unwrap(), pair);
    let back = ["1", &*base(other), &*base(inner)];
    assert_eq!(ask(dir, copy, 0).unwrap(), back);
    assert_eq!(ask(dir, copy, 1).unwrap(), ["1"], "there are no more");
    assert_ne!(base(late), base(inner));
    // With the views themselves, and the first numbers of their own.
    let twins = |from| {
        let ask = format!("twins {} {from}", dir.0);
        setup.differences(0, copy, &ask).unwrap()
    };
    let told = twins(0);
    assert!(told[0].parse::<i64>().is_ok(), "{told:?}");
    assert_eq!(told[1], "2");
    assert_eq!(told[2..4], ["0", &*base(copy)]);
    assert_eq!(told[5..7], [&*base(inner), &*base(other)]);
    let first_own = |word: &str| word.parse::<u64>().unwrap();
    assert!(first_own(&told[4]) > MANY as u64 && first_own(&told[7]) > 1);
    assert_eq!(twins(1)[2..], told[5..], "from one on");
    let refused = setup.differences(OTHER, copy, &format!("pairs {} 0", dir.0));
    assert_eq!(refused, Err(Errno::EPERM), "one side is open");
}

#[test]
fn numbers_of_clones_in_a_snapshot_are_told() {
    let (setup, dir) = many();
    let parts = |dir| setup.differences(0, dir, "parts 0").unwrap();
    assert_eq!(parts(dir), ["44", "0", "0"]);
    let copy = setup.clone_to(dir, ROOT, b"copy").unwrap().ino;
    let base = |ino: Ino| (ino.0 >> 44 << 44).to_string();
    assert_eq!(parts(copy), ["44", &*base(copy), "0"]);
    setup.create(0, ROOT, "all").unwrap();
    let all = setup.place("all");
    assert_eq!(parts(all), ["43", "0", "1", &*base(copy)]);
    let inner = setup.lookup(all, b"copy").unwrap().unwrap().ino;
    assert_eq!(inner.0 >> 43 & 1, 1, "it is part 1");
    assert_eq!(parts(inner), ["43", &*base(copy), "1", &*base(copy)]);
    assert_eq!(
        setup.differences(0, all, "parts 7").unwrap(),
        ["43", "0", "1"]
    );
}
