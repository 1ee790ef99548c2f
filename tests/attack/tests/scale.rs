//! What many cost, measured in a process of its own: the tests that run beside others would count what those allocate.

use std::process::Command;

#[test]
fn hundreds_cost_each_as_much_as_ten_and_leave_nothing() {
    let few = ["--waiters=2000", "--locks=2000", "--processes=30", "--churn=400"];
    let run = Command::new(env!("CARGO_BIN_EXE_attack"))
        .arg("scale")
        .args(few)
        .output();
    let run = run.expect("the binary of this crate");
    let (said, failed) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    println!("{said}{failed}");
    assert!(run.status.success() && said.contains("\n0 wrong"), "{said}{failed}");
}
