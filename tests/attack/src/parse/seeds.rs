//! What `make fuzz` checks, on the seeds that it begins with: nobody runs it at each change, and what it checks must keep up
//! with the protocol.

#[path = "../../../fuzz/checks/message.rs"]
mod message;
#[path = "../../../fuzz/checks/name.rs"]
mod name;
#[path = "../../../fuzz/checks/reply.rs"]
mod reply;

use std::path::Path;

fn check_all(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let seeds: Vec<_> = std::fs::read_dir(&folder).expect("a folder of seeds").collect();
    assert!(!seeds.is_empty(), "{}", folder.display());
    for seed in seeds {
        let path = seed.expect("a seed").path();
        println!("{}", path.display());
        check(&std::fs::read(path).expect("a seed"));
    }
}

#[test]
fn the_checks_of_the_fuzzer_hold_for_its_seeds() {
    check_all("reply", reply::check);
    check_all("message", message::check);
    check_all("name", name::check);
}
