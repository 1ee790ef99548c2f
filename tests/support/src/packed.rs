//! The field `s` of a lock's state, for tests that look into the server: see *The state* in PROTOCOL.md.

use redis::aio::ConnectionLike;

/// What the numbers of the field say, and its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Packed {
    /// 0, or the byte of `w`, `r` or `n`.
    pub policy: u8,
    pub sole: bool,
    pub more: bool,
    pub up: bool,
    pub reads: u32,
    pub writes: u32,
    pub waiting: u32,
    pub seq: u64,
    pub token: u64,
    pub first: u64,
    pub near: u64,
    pub keep: u64,
    pub cap: u64,
    /// Of a bounded lock, as is `used`; otherwise 0.
    pub limit: u32,
    pub used: u32,
    pub holder: String,
}

/// Where the text begins, in a lock without a bound.
const HOLDER: usize = 63;

impl Packed {
    /// `None`: the field is of another layout.
    pub fn read(field: &[u8]) -> Option<Self> {
        let (numbers, mut holder) = field.split_at_checked(HOLDER)?;
        if numbers[0] != 2 {
            return None;
        }
        let u32_at = |at: usize| u32::from_le_bytes(field[at..at + 4].try_into().expect("four bytes"));
        let count = |n: usize| u32_at(3 + 4 * n);
        let (mut limit, mut used) = (0, 0);
        if numbers[1] == b'n' {
            (limit, used) = (u32_at(HOLDER), u32_at(HOLDER + 4));
            holder = &holder[8..];
        }
        let number = |n: usize| {
            let at = 15 + 8 * n;
            f64::from_le_bytes(numbers[at..at + 8].try_into().expect("eight bytes")) as u64
        };
        Some(Self {
            policy: numbers[1],
            sole: numbers[2] & 1 != 0,
            more: numbers[2] & 2 != 0,
            up: numbers[2] & 4 != 0,
            reads: count(0),
            writes: count(1),
            waiting: count(2),
            seq: number(0),
            token: number(1),
            first: number(2),
            near: number(3),
            keep: number(4),
            cap: number(5),
            limit,
            used,
            holder: String::from_utf8(holder.to_vec()).expect("a request"),
        })
    }

    /// The state of a lock, by its key. All zeros: there is none.
    pub async fn of(redis: &mut impl ConnectionLike, state: &str) -> Self {
        let field: Option<Vec<u8>> = redis::cmd("HGET")
            .arg(state)
            .arg("s")
            .query_async(redis)
            .await
            .expect("HGET");
        field.map_or_else(Self::default, |field| Self::read(&field).expect("layout 2"))
    }

    /// `read` or `write`; empty: the lock is free.
    pub fn mode(&self) -> &'static str {
        match (self.reads, self.writes) {
            (0, 0) => "",
            (_, 0) => "read",
            _ => "write",
        }
    }

    /// The owner that writes. Empty: nobody does.
    pub fn writer(&self) -> &str {
        match (self.writes, self.holder.splitn(3, ':').nth(2)) {
            (0, _) => "",
            (_, Some(named)) => named,
            (_, None) => &self.holder[1..],
        }
    }

    /// Holds of all owners.
    pub fn holds(&self) -> usize {
        (self.reads + self.writes) as usize
    }
}

/// Moves the deadlines of requests, wherever they are kept. The state says that no lease ends before `near`, so that has
/// to follow.
const MOVE: &str = "
local s = redis.call('HGET', KEYS[1], 's')
local at, moved = tonumber(ARGV[1]), 0
local near = struct.unpack('<d', s, 40)
if string.byte(s, 3) % 2 == 1 then
  if string.sub(s, string.byte(s, 2) == 110 and 72 or 64) ~= ARGV[2] or ARGV[3] then return 0 end
  near, moved = at, 1
else
  for i = 2, #ARGV do
    moved = moved + redis.call('ZADD', KEYS[2], 'XX', 'CH', ARGV[1], ARGV[i])
  end
  near = math.min(near, at)
end
redis.call('HSET', KEYS[1], 's', string.sub(s, 1, 39) .. struct.pack('<d', near) .. string.sub(s, 48))
return moved";

/// Moves the deadlines of requests to that time in ms. Returns how many moved.
pub async fn move_deadlines(redis: &mut impl ConnectionLike, state: &str, requests: &[&str], at_ms: u64) -> usize {
    let mut eval = redis::cmd("EVAL");
    eval.arg(MOVE).arg(2).arg(state).arg(format!("{state}:l"));
    eval.arg(at_ms).arg(requests);
    eval.query_async(redis)
        .await
        .expect("the state of a lock that is in use")
}

/// Lets the leases of requests run out: the next call of anybody ends them.
pub async fn run_out(redis: &mut impl ConnectionLike, state: &str, requests: &[&str]) {
    let moved = move_deadlines(redis, state, requests, 1).await;
    assert_eq!(moved, requests.len(), "not all of them are there to die: {requests:?}");
}
