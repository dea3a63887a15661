//! What `info` and `statfs` tell of a store.

use crate::mounted::Mounted;
use crate::place::Place;

#[test]
fn a_store_at_rest_tells_its_free_space() {
    let place = Place::with_store("a");
    let info = place.run(&["info", "--json", "a"]).code(0).json();
    let [total, free] = ["space_total_bytes", "space_free_bytes"].map(|name| info[name].as_u64());
    let (total, free) = (total.unwrap(), free.unwrap());
    assert!(free > 0 && free <= total && total < 16 << 20, "{info}");
    let text = place.run(&["info", "a"]).code(0).out();
    assert!(text.contains("space_free_bytes"), "{text}");
}

#[test]
fn a_mount_tells_its_options_and_has_no_identifier_in_statfs() {
    let Some(mounted) = Mounted::new(&["-o", "noatime,nosuid,transport=dev"]) else {
        return;
    };
    let info = mounted.place.run(&["info", "--json", "mnt"]).code(0).json();
    let options = info["mount_options"].as_str().unwrap();
    let options: Vec<_> = options.split(',').collect();
    for option in ["rw", "noatime", "nosuid", "allow_other"] {
        let count = options.iter().filter(|&&one| one == option).count();
        assert_eq!(count, 1, "{option} in {options:?}");
    }
    let stat = rustix::fs::statvfs(mounted.path("")).unwrap();
    assert_eq!(stat.f_fsid, 0);
    mounted.umount();
}
