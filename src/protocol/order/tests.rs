use super::*;

fn options(admission: Admission, max_queue: Option<usize>, origin: Origin) -> String {
    let lock = Lock::new("p", "a".into());
    let ask = AskToAcquire {
        request: "r0a:1",
        lease: Duration::from_secs(1).into(),
        only_now: false,
        admission,
        max_queue,
        origin,
    };
    let (channel, listened) = (Channel::OfClient, true);
    let call = ScriptCall {
        lock: &lock,
        channel,
        listened,
        ask: Ask::Acquire(&ask),
    };
    let mut cmd = Cmd::new();
    call.add_options(&mut cmd, false);
    let mut args = cmd.args_iter();
    match args.next() {
        Some(Arg::Simple(options)) => String::from_utf8(options.to_vec()).unwrap(),
        _ => panic!("no options"),
    }
}

#[test]
fn a_bound_and_the_room_in_the_queue_stand_among_the_options() {
    assert_eq!(options(Admission::bounded(4), None, Origin::New), "en4");
    assert_eq!(options(Admission::bounded(4), Some(100), Origin::New), "en4m100");
    assert_eq!(options(Admission::FIFO, Some(0), Origin::New), "em0");
}

#[test]
fn a_request_that_had_a_place_and_an_upgrade_need_no_room() {
    assert_eq!(options(Admission::FIFO, Some(0), Origin::Requeued(9)), "e");
    assert_eq!(options(Admission::FIFO, Some(0), Origin::Upgrade(9)), "eu");
}

#[test]
fn a_new_vote_says_so() {
    assert_eq!(options(Admission::FIFO, None, Origin::Vote), "eq");
}
