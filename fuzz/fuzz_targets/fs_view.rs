#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stitch_golden::hostile::fs_view(bytes));
