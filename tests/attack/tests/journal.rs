//! The journal of real scripts on a real server: complete, in order, and without effect on what it watches.

use fairlock::{Client, EventKind, Owner};
use fairlock_attack::journal;
use fairlock_attack::lua_world::numbers_of;
use fairlock_attack::model::NOT_TOLD;
use fairlock_attack::record::{Record, Script, argv};
use fairlock_support::scripts;
use fairlock_support::server::{Server, soon};
use futures::StreamExt;
use redis::aio::MultiplexedConnection;
use std::time::Duration;

const KEY: &str = "fairlock:{a}";
/// Nothing is renewed or expires meanwhile.
const LONG: Duration = Duration::from_secs(3600);

struct Lock {
    redis: MultiplexedConnection,
    listened: &'static str,
    after: String,
    /// Listens for all clients, so that no script cuts a lease.
    _listener: redis::aio::PubSub,
    server: Server,
}

impl Lock {
    async fn new() -> Self {
        assert!(journal::install());
        let server = Server::start().await;
        let client = redis::Client::open(server.url()).expect("a URL");
        let mut listener = client.get_async_pubsub().await.expect("a connection");
        listener.psubscribe("*c:*").await.expect("the server is up");
        Self {
            redis: server.redis().await,
            listened: "",
            after: String::new(),
            _listener: listener,
            server,
        }
    }

    async fn call(&mut self, script: Script, args: &str) -> Result<Vec<i64>, redis::RedisError> {
        let scripts = fairlock::testing::scripts();
        let (_, texts) = scripts
            .iter()
            .find(|(name, _)| *name == script.name())
            .expect("a script");
        self.eval(script, texts[1], args).await
    }

    async fn eval(&mut self, script: Script, text: &str, args: &str) -> Result<Vec<i64>, redis::RedisError> {
        let mut call = redis::cmd("EVAL");
        call.arg(text).arg(3);
        call.arg(KEY).arg(format!("{KEY}:q")).arg(format!("{KEY}:l"));
        let args: Vec<&str> = args.split(' ').filter(|_| !args.is_empty()).collect();
        call.arg(argv(script, &args, self.listened));
        let reply = call.query_async(&mut self.redis).await?;
        Ok(numbers_of(&reply, script).expect("a reply of the script"))
    }

    async fn ask(&mut self, request: &str) -> Vec<i64> {
        self.call(Script::Acquire, &format!("{request} 60000 queue  "))
            .await
            .expect("acquire")
    }

    async fn release(&mut self, requests: &str) -> Vec<i64> {
        self.call(Script::Release, requests).await.expect("release")
    }

    async fn redis<T: redis::FromRedisValue>(&mut self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut call = redis::cmd(words.next().expect("a command"));
        call.arg(words.collect::<Vec<_>>());
        call.query_async(&mut self.redis).await.expect(command)
    }

    async fn read(&mut self) -> Result<Vec<Record>, String> {
        journal::read(&mut self.redis, KEY, &mut self.after).await
    }

    /// Script, arguments, reply and notes of what is new; tokens as T, tickets and the like as N.
    async fn story(&mut self) -> Vec<String> {
        self.read().await.expect("a journal").iter().map(told).collect()
    }
}

fn told(record: &Record) -> String {
    let number = |number: i64| match number {
        NOT_TOLD => "_".to_owned(),
        1_000_000_000_000.. => "N".to_owned(),
        n if n < -1_000_000_000_000 => "-N".to_owned(),
        500..=60_000 => "ms".to_owned(),
        _ => number.to_string(),
    };
    let mut text = format!("{} {} ->", record.script.name(), record.args.join(" ").trim_end());
    for value in &record.reply {
        text += &format!(" {}", number(*value));
    }
    for note in &record.notes {
        let token = if note.token > 0 { " T" } else { "" };
        text += &format!("; {} {}{token}", note.what.name(), note.request);
    }
    text
}

#[tokio::test]
async fn every_kind_of_call_is_there_in_order_with_what_it_did() {
    let mut lock = Lock::new().await;
    lock.ask("w1:1").await;
    lock.release("w1:1").await;
    lock.ask("w1:2").await;
    lock.release("w1:2").await;
    lock.release("w1:2").await;
    lock.ask("r1:3:o").await;
    lock.ask("r2:1:p").await;
    lock.ask("w1:4:o").await; // an upgrade
    lock.ask("w2:2:p").await; // and a second one
    lock.call(Script::Acquire, "w3:1 60000 try  ").await.expect("acquire");
    lock.release("r2:1:p w9:9").await;
    lock.ask("r3:2").await;
    lock.ask("w3:3").await;
    lock.call(Script::Renew, "r3:2 60000 w9:9 60000 w1:4:o 60000")
        .await
        .expect("renew");
    lock.call(Script::Downgrade, "w1:4:o r1:5:o 60000")
        .await
        .expect("downgrade");
    lock.call(Script::Evict, "o").await.expect("evict");
    lock.release("w3:3 r3:2").await;
    lock.call(Script::Renew, "").await.expect("renew");
    let expected = [
        "acquire w1:1 60000 queue -> 2 N _ _; granted w1:1 T",
        "release w1:1 -> _ N; released w1:1",
        "acquire w1:2 60000 queue -> 2 N _ _; granted w1:2 T",
        "release w1:2 -> _ N; released w1:2",
        "release w1:2 -> _ 0",
        "acquire r1:3:o 60000 queue -> 2 N _ _; granted r1:3:o T",
        "acquire r2:1:p 60000 queue -> 2 N _ _; granted r2:1:p T",
        "acquire w1:4:o 60000 queue -> 1 N ms N 0; queued w1:4:o",
        "acquire w2:2:p 60000 queue -> -1 0 ms N",
        "acquire w3:1 60000 try -> 0 0 _ _",
        "release r2:1:p w9:9 -> ms N 0; released r2:1:p; granted w1:4:o T",
        "acquire r3:2 60000 queue -> 1 N ms N 0; queued r3:2",
        "acquire w3:3 60000 queue -> 1 N ms N 1; queued w3:3",
        "renew r3:2 60000 w9:9 60000 w1:4:o 60000 -> ms N -N -1 N",
        "downgrade w1:4:o r1:5:o 60000 -> ms N; granted r1:5:o T; released w1:4:o; granted r3:2 T",
    ];
    let records = lock.read().await.expect("a journal");
    // The entry's time is the script's own: the first token of a lock is made of it.
    assert_eq!(records[0].reply[1] as u64, records[0].at_us);
    assert_eq!(records[2].notes[0].token, records[2].at_us);
    let story: Vec<_> = records.iter().map(told).collect();
    assert_eq!(story[..15], expected);
    let mut evicted: Vec<_> = story[15].split("; ").collect();
    evicted[1..].sort_unstable();
    assert_eq!(evicted, ["evict o -> ms 2", "evicted r1:3:o", "evicted r1:5:o"]);
    assert_eq!(
        story[16..],
        [
            "release w3:3 r3:2 -> -1 1 N; left w3:3; released r3:2",
            "renew  -> -1 N"
        ]
    );
    assert!(lock.story().await.is_empty(), "read twice");
}

#[tokio::test]
async fn expiry_and_a_reset_are_there() {
    let mut lock = Lock::new().await;
    lock.call(Script::Acquire, "w1:1 1 queue  ").await.expect("acquire");
    lock.ask("w2:1").await;
    lock.ask("w2:2").await;
    let mut clock = 0;
    while clock < 2 {
        let reply = lock.call(Script::Renew, "").await.expect("renew");
        clock = if reply[0] > 1000 { 2 } else { 0 };
    }
    let story = lock.story().await.join("\n");
    assert_eq!(story.matches("expired w1:1; granted w2:1 T").count(), 1, "{story}");
    let queue = format!("{KEY}:q");
    journal::delete(&mut lock.redis, KEY, &[queue]).await.expect("delete");
    lock.call(Script::Renew, "w2:1 60000 w2:2 60000").await.expect("renew");
    let damaged = lock.read().await.expect_err("damage");
    assert!(damaged.starts_with(journal::DAMAGED), "{damaged}");
    assert_eq!(
        lock.story().await,
        ["renew w2:1 60000 w2:2 60000 -> -1 N -1 -1; reset -"]
    );
}

#[tokio::test]
async fn the_public_api_leaves_the_same_journal_also_when_the_script_cache_is_empty() {
    for flush in [false, true] {
        let mut lock = Lock::new().await;
        use_it(&mut lock, flush).await;
        let kinds: Vec<_> = until(&mut lock, 11).await.iter().map(kind).collect();
        let expected = [
            "acquire granted w",
            "release released w",
            "acquire granted w",
            "release released w",
            "acquire granted r",
            "acquire",
            "acquire granted w",
            "acquire queued r",
            "downgrade granted r released w granted r",
            "evict evicted r evicted r",
            "release released r",
        ];
        // What is released that was evicted makes no difference.
        assert_eq!(kinds[..11], expected, "flushed: {flush}");
    }
}

async fn use_it(lock: &mut Lock, flush: bool) {
    let client = Client::builder()
        .lease(LONG)
        .connect(lock.server.url())
        .await
        .expect("a server");
    let mine = client.rw_lock("a");
    let owner = Owner::new();
    for _ in 0..2 {
        if flush {
            lock.redis::<String>("SCRIPT FLUSH").await;
        }
        let guard = mine.write().acquire_fair().await.expect("a free lock");
        guard.release().await.expect("held");
    }
    let reading = mine
        .with_owner(&owner)
        .read()
        .acquire_fair()
        .await
        .expect("a free lock");
    assert!(mine.write().try_acquire().await.expect("an answer").is_none());
    let writing = reading.upgrade().await.expect("the only reader");
    let waiting = tokio::spawn(mine.read().acquire_fair());
    lock.server.until_queued("a", 1).await;
    if flush {
        lock.redis::<String>("SCRIPT FLUSH").await;
    }
    let second = writing.downgrade().await.expect("held");
    let third = soon("a reader", waiting).await.expect("no panic").expect("granted");
    assert_eq!(mine.evict(&owner).await.expect("an answer"), 2);
    third.release().await.expect("held");
    assert!(second.release().await.is_err());
}

/// Waits for so many further entries.
async fn until(lock: &mut Lock, n: usize) -> Vec<Record> {
    let mut records = Vec::new();
    let all = async {
        while records.len() < n {
            records.extend(lock.read().await.expect("a journal"));
            tokio::task::yield_now().await;
        }
    };
    soon("entries", all).await;
    records
}

fn kind(record: &Record) -> String {
    let notes = record.notes.iter();
    let notes = notes.map(|note| format!(" {} {}", note.what.name(), &note.request[..1]));
    format!("{}{}", record.script.name(), notes.collect::<String>())
}

async fn listen(server: &Server) -> redis::aio::PubSubStream {
    let client = redis::Client::open(server.url()).expect("a URL");
    let (mut sink, stream) = client.get_async_pubsub().await.expect("a server").split();
    sink.subscribe(format!("{KEY}:events")).await.expect("subscribed");
    tokio::spawn(async move {
        let _sink = sink;
        std::future::pending::<()>().await;
    });
    stream
}

#[tokio::test]
async fn keys_replies_and_events_are_as_without_a_journal() {
    let mut states = Vec::new();
    for with in [false, true] {
        let mut lock = Lock::new().await;
        lock.listened = "e";
        let mut events = listen(&lock.server).await;
        let text = match with {
            true => journal::journaled("acquire", scripts::ACQUIRE.text, None),
            false => scripts::ACQUIRE.text.to_owned(),
        };
        let mut state = Vec::new();
        for request in ["w1:1", "r1:2", "w1:1", "r1:3:o"] {
            let reply = lock
                .eval(Script::Acquire, &text, &format!("{request} 60000 queue  "))
                .await
                .expect("acquire");
            state.push(format!("{} {}", reply[0], reply.len()));
        }
        for _ in 0..3 {
            let message = soon("an event", events.next()).await.expect("an event");
            let payload: String = message.get_payload().expect("a text");
            let (_, lines) = payload.split_once('\n').expect("a time");
            state.push(lines.split(' ').take(2).collect::<Vec<_>>().join(" "));
        }
        for key in [KEY.to_owned(), format!("{KEY}:q"), format!("{KEY}:l")] {
            let ttl: i64 = lock.redis(&format!("PTTL {key}")).await;
            // To the nearest ten seconds: some milliseconds have passed.
            state.push(format!("{}", (ttl + 5_000) / 10_000));
        }
        let mut fields: Vec<String> = lock.redis(&format!("HKEYS {KEY}")).await;
        fields.sort_unstable();
        state.push(fields.join(" "));
        states.push(state);
    }
    assert_eq!(states[0], states[1]);
}

#[tokio::test]
async fn a_stream_of_events_goes_on_over_a_reset() {
    let mut lock = Lock::new().await;
    let client = Client::builder()
        .lease(LONG)
        .connect(lock.server.url())
        .await
        .expect("a server");
    let mine = client.rw_lock("a");
    let mut events = mine.events().await.expect("a stream");
    let guard = mine.write().acquire_fair().await.expect("a free lock");
    let waiting = tokio::spawn(mine.read().acquire_fair());
    lock.server.until_queued("a", 1).await;
    lock.redis::<u64>(&format!("DEL {KEY}:q")).await;
    // Whoever renews finds the damage; here nobody has a reason to for an hour.
    lock.listened = "e";
    lock.call(Script::Renew, "").await.expect("renew");
    let next = mine.read().acquire_fair().await.expect("a free lock");
    next.release().await.expect("held");
    let mut kinds = Vec::new();
    while kinds.len() < 4 {
        let event = soon("an event", events.next())
            .await
            .expect("a stream")
            .expect("no gap");
        kinds.push(event.kind);
    }
    use EventKind::{Granted, Queued, Released};
    assert_eq!(kinds, [Granted, Queued, Granted, Released]);
    waiting.abort();
    drop(guard);
}

#[tokio::test]
async fn a_full_server_releases_and_writes_its_journal() {
    let mut lock = Lock::new().await;
    lock.ask("w1:1").await;
    lock.ask("w2:1").await;
    lock.redis::<String>("CONFIG SET maxmemory 1").await;
    let refused = lock
        .call(Script::Acquire, "w3:1 60000 queue  ")
        .await
        .expect_err("no memory");
    assert!(refused.to_string().contains("OOM"), "{refused}");
    assert!(lock.release("w1:1").await[1] > 1);
    let story = lock.story().await;
    assert_eq!(story[2..], ["release w1:1 -> _ N; released w1:1; granted w2:1 T"]);
}

#[tokio::test]
async fn what_is_missing_is_told() {
    let mut lock = Lock::new().await;
    for n in 0..5 {
        lock.ask(&format!("w1:{n}")).await;
    }
    // A script that fails half-way, after it has written.
    let text = journal::journaled(
        "renew",
        &(scripts::file("lock.lua").to_owned()
            + "begin(KEYS, ARGV) redis.call('HSET', LOCK, 'x', 1) note('left', 'w1:9') redis.call('GET', LOCK)"),
        None,
    );
    let error = lock.eval(Script::Renew, &text, "").await.expect_err("not a string");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    lock.ask("w1:6").await;
    assert_eq!(lock.read().await.expect("entries").len(), 5);
    let gap = lock.read().await.expect_err("an entry that tells of the failure");
    assert!(
        gap.starts_with(journal::GAP) && gap.contains("half-way") && gap.contains("left w1:9"),
        "{gap}"
    );
    assert_eq!(lock.read().await.expect("entries").len(), 1);

    // An error of Lua's own stays an error of the server.
    let text = journal::journaled(
        "renew",
        &(scripts::file("lock.lua").to_owned() + "error('broken')"),
        None,
    );
    let error = lock.eval(Script::Renew, &text, "").await.expect_err("an error");
    assert!(matches!(error.kind(), redis::ErrorKind::Server(_)), "{error}");
    let gap = lock.read().await.expect_err("an entry that tells of the failure");
    assert!(gap.starts_with(journal::GAP), "{gap}");

    // An entry that is not there, in the middle and at the end.
    for end in [false, true] {
        lock.redis::<u64>(&format!("INCR {KEY}:journal:n")).await;
        if !end {
            lock.ask("w1:7").await;
        }
        let gap = lock.read().await.expect_err("a gap");
        assert!(gap.starts_with(journal::GAP), "{gap}");
    }
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told() {
    let mut lock = Lock::new().await;
    let text = journal::journaled("renew", scripts::RENEW.text, Some(100));
    lock.eval(Script::Renew, &text, "").await.expect("renew");
    assert_eq!(lock.story().await.len(), 1);
    for _ in 0..1000 {
        lock.eval(Script::Renew, &text, "").await.expect("renew");
    }
    let kept: u64 = lock.redis(&format!("XLEN {KEY}:journal")).await;
    assert!(kept < 400, "{kept}");
    let gap = lock.read().await.expect_err("a gap");
    assert!(gap.starts_with(journal::GAP), "{gap}");
    assert!(!lock.read().await.expect("the rest").is_empty());
}

#[tokio::test]
async fn what_was_read_can_be_dropped() {
    let mut lock = Lock::new().await;
    for n in 0..1500 {
        lock.release(&format!("w1:{n}")).await;
    }
    assert_eq!(lock.read().await.expect("a page").len(), 1000);
    journal::forget(&mut lock.redis, KEY, &lock.after.clone())
        .await
        .expect("trim");
    assert_eq!(lock.read().await.expect("the rest").len(), 500);
    assert_eq!(lock.read().await, Ok(vec![]));
    let kept: u64 = lock.redis(&format!("XLEN {KEY}:journal")).await;
    assert!(kept <= 700, "{kept}");
}

#[tokio::test]
async fn lost_data_are_told_from_a_step_back() {
    let mut lock = Lock::new().await;
    lock.ask("w1:1").await;
    lock.read().await.expect("entries");
    for key in ["journal", "journal:n"] {
        lock.redis::<u64>(&format!("COPY {KEY}:{key} {KEY}:{key}:old")).await;
    }
    lock.ask("w1:2").await;
    lock.read().await.expect("entries");
    // As after a failover: the second entry is gone, and another one takes its number.
    for key in ["journal", "journal:n"] {
        lock.redis::<String>(&format!("RENAME {KEY}:{key}:old {KEY}:{key}"))
            .await;
    }
    for again in [false, true] {
        if again {
            lock.ask("w1:3").await;
        }
        let after = lock.after.clone();
        let lost = lock.read().await.expect_err("a step back");
        assert!(
            lost.starts_with(journal::LOST) && !lost.contains("everything"),
            "{lost}"
        );
        assert_eq!(
            lock.read().await.expect("from the beginning").len(),
            if again { 2 } else { 1 }
        );
        lock.after = after;
    }
    lock.redis::<String>("FLUSHALL").await;
    for again in [false, true] {
        if again {
            lock.ask("w1:4").await;
        }
        let after = lock.after.clone();
        let lost = lock.read().await.expect_err("a loss");
        assert!(lost.starts_with(journal::LOST) && lost.contains("everything"), "{lost}");
        assert_eq!(lock.read().await.expect("from the beginning").len(), usize::from(again));
        lock.after = after;
    }
}
