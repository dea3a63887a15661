//! Positions in directories.

use crate::common::{ROOT, setup};
use stitch_fs::Taken;

#[test]
fn positions_have_up_to_63_bits() {
    let setup = setup();
    for number in 0..20 {
        setup.file(ROOT, &format!("f{number}"));
    }
    let mut positions = Vec::new();
    let mut take = |entry: &stitch_fs::DirEntry<'_>| {
        positions.push(entry.offset);
        Taken::More
    };
    setup.fs.read_dir(ROOT, 0, &mut take).unwrap();
    assert!(positions.iter().all(|position| *position < 1 << 63));
    assert!(
        positions
            .iter()
            .any(|position| *position > u64::from(u32::MAX))
    );
}
