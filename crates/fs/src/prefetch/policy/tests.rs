//! Scripts: a line is an event, and after `=>` what is loaded.
//!
//! | event | is |
//! |---|---|
//! | `read I OFFSET LEN SIZE` | a read of file I, in KiB |
//! | `open D H` | the start of the short file with hash H in directory D is read |
//! | `list D P H` | directory D, with hash H in P, is listed |
//! | `full` / `room` | from now on there is no memory for loads / there is again |
//!
//! Directory D of a script's tree has the files D00 to D03 of 8 KiB, with the hashes 1 to 4. The
//! next one in the order of listing is D + 1, up to the last.

use super::*;

struct Script {
    policy: Policy,
    last_dir: u64,
    has_room: bool,
}

impl Script {
    fn new(last_dir: u64) -> Self {
        Self {
            policy: Policy::default(),
            last_dir,
            has_room: true,
        }
    }

    /// Runs a script and compares what is loaded.
    #[track_caller]
    fn run(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|l| !l.is_empty()) {
            let (event, expected) = line.split_once("=>").unwrap_or((line, ""));
            let words: Vec<&str> = event.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            let name = |dir, hash| HashedName {
                dir: Ino(dir),
                hash,
            };
            let loads = match words[0] {
                "read" => self.observe(Observation::Read(FileRead {
                    contents: Ino(number(1)),
                    offset: number(2) << 10,
                    len: number(3) << 10,
                    size: number(4) << 10,
                })),
                "open" => self.observe(Observation::Started(name(number(1), number(2)))),
                "list" => self.observe(Observation::Listed {
                    dir: Ino(number(1)),
                    name: name(number(2), number(3)),
                }),
                room => {
                    self.has_room = room == "room";
                    String::new()
                }
            };
            assert_eq!(loads, expected.trim(), "{line}");
        }
    }

    /// Brings an event, and the answers to what the policy asks. Returns what it has loaded.
    fn observe(&mut self, event: Observation) -> String {
        let mut out = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            let (loads, need) = self.policy.observe(event);
            out.extend(loads.iter().map(show));
            if let Some(first) = loads.first().filter(|_| !self.has_room) {
                self.policy.refused(first);
            }
            next = need.map(|need| match need {
                Need::Files(guess) => Observation::Files(guess, Some(listing(guess.dir))),
                Need::NextDirs {
                    mut order, dirs, ..
                } => {
                    let last = order.0.last().map_or(0, |name| name.dir.0);
                    let next = (last + 1..=self.last_dir).take(dirs).map(Ino);
                    let found: Vec<_> = next.map(|dir| (dir, listing(dir))).collect();
                    let name = |(dir, _): &(Ino, Listing)| HashedName { dir: *dir, hash: 1 };
                    order.0.extend(found.iter().map(name));
                    Observation::NextDirs(order, found)
                }
            });
        }
        out.join(", ")
    }
}

fn listing(dir: Ino) -> Listing {
    let files: Vec<_> = (0..4).map(|at| (dir.0 * 100 + at, 8 << 10)).collect();
    Listing {
        bytes: files.iter().map(|(_, size)| size).sum(),
        files,
        hashes: vec![1, 2, 3, 4],
        is_part: false,
    }
}

fn show(load: &Load) -> String {
    let of = load.of;
    let span = match &load.span {
        LoadSpan::Bytes(bytes) => {
            let (start, len) = (bytes.start >> 10, (bytes.end - bytes.start) >> 10);
            format!("{of} {start}+{len}")
        }
        LoadSpan::Files(numbers) => format!("files {}..{}", numbers.start, numbers.end),
        LoadSpan::Names => format!("names {of}"),
    };
    let is_sequential = matches!(load.span, LoadSpan::Bytes(_));
    assert_eq!(load.order() == ReadOrder::Sequential, is_sequential);
    let beyond = load
        .beyond
        .map_or(String::new(), |ino| format!(" to {ino}"));
    let later = match load.priority {
        Priority::Soon => "",
        Priority::Later => " later",
    };
    format!("{span}{beyond}{later}")
}

#[test]
fn a_file_in_order() {
    Script::new(0).run(
        "
        read 7 0 1024 65536
        read 7 1024 1024 65536 => 7 2048+1024, 7 3072+1024
        read 7 2048 1024 65536 => 7 4096+1024, 7 5120+1024
        read 7 3072 1024 65536 => 7 6144+1024, 7 7168+1024
        read 7 4096 1024 65536 => 7 8192+1024
        read 7 40960 1024 65536
        read 7 41984 1024 65536 => 7 43008+1024
        ",
    );
}

#[test]
fn a_file_in_order_without_memory() {
    Script::new(0).run(
        "
        read 7 0 1024 65536
        full
        read 7 1024 1024 65536 => 7 2048+1024, 7 3072+1024
        read 7 2048 128 65536
        read 7 2176 128 65536  => 7 2304+1024, 7 3328+1024, 7 4352+1024
        room
        read 7 2304 512 65536  => 7 2816+1024, 7 3840+1024, 7 4864+1024
        read 7 2816 1024 65536 => 7 5888+1024, 7 6912+1024
        ",
    );
}

#[test]
fn a_directory_without_memory_is_asked_for_again() {
    Script::new(0).run(
        "
        open 20 1
        full
        open 20 2 => files 2000..2004
        open 20 3 => files 2000..2004
        room
        open 20 4 => files 2000..2004
        open 20 1
        ",
    );
}

#[test]
fn the_second_file_of_a_directory() {
    Script::new(0).run(
        "
        open 20 1
        open 20 2 => files 2000..2004
        open 20 3
        open 20 4
        open 30 3
        open 30 1 => files 3000..3004
        ",
    );
}

/// Directory after directory: first with what lies behind, then by the order of listing.
#[test]
fn a_walk_over_directories() {
    let mut script = Script::new(1000);
    for dir in 20..24 {
        script.run(&format!(
            "open {dir} 1
             open {dir} 2 => files {dir}00..{dir}04
             open {dir} 3
             open {dir} 4"
        ));
    }
    script.run(
        "open 24 1
         open 24 2 => files 2400..2404 to 2529
         open 24 3
         open 24 4",
    );
    for dir in 25..30 {
        script.run(&format!(
            "open {dir} 1 => files {dir}00..{dir}04 to {}29
             open {dir} 2",
            dir + 1
        ));
    }
    script.run(
        "open 30 1 => files 3000..3004 to 3129, files 3100..3104 later, files 3200..3204 later, \
         files 3300..3304 later, files 3400..3404 later
         open 30 2
         open 31 1 => files 3500..3504 later
         open 31 2
         full
         open 32 1 => files 3600..3604 later
         room
         open 33 1 => files 3700..3704 later
         open 36 1 => files 3600..3604, files 3800..3804 later, files 3900..3904 later",
    );
}

#[test]
fn names_of_directories_that_are_listed() {
    let mut script = Script::new(0);
    for parent in 20..24 {
        script.run(&format!(
            "list {parent}1 {parent} 1
             list {parent}2 {parent} 2"
        ));
    }
    script.run(
        "list 241 24 1
         list 242 24 2 => names 242 to 1266
         list 251 25 1 => names 251 to 1275",
    );
}
