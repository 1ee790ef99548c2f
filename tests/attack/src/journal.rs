//! The journal: what every script did to a lock, in the order of execution, written by the scripts themselves.
//!
//! Scripts are atomic, so what they append to a stream in the same step is the exact history, whatever becomes of the
//! replies and messages. `install` wraps the scripts of this process; the stream of a lock is `{its state key}:journal`.
//! The lock's own keys, their times to live and the replies stay as they are.

use crate::record::{Note, Record, Script, What, acquire, told};
use redis::aio::MultiplexedConnection;

/// An error of [`read`] that begins so: the server lost its data, or a part, and the journal with it. Reading goes on
/// at the beginning of the journal that is there now. It says "everything" if none of the former journal is left:
/// then [`Checker::state_lost`](crate::checker::Checker::state_lost). Otherwise the server went back to an earlier moment, and
/// so did the journal: what comes belongs to a new checker.
pub const LOST: &str = "lost: ";
/// An error of [`read`] that begins so: [`delete`] took keys away here. Reading goes on behind it.
pub const DAMAGED: &str = "damaged: ";
/// An error of [`read`] that begins so: entries are missing; the history cannot be checked.
pub const GAP: &str = "gap: ";

/// Entries read in one call.
const PAGE: usize = 1000;

/// What the scripts are besides journaled.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// About how many entries a stream keeps. A reader that is slower than that is told of a gap.
    pub most: Option<u64>,
    /// A mutation of a script, given its name and text.
    pub mutate: fn(&str, &str) -> String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            most: None,
            mutate: |_, body| body.to_owned(),
        }
    }
}

/// From now on the scripts of this process keep a journal. False: they were made before, without one.
pub fn install() -> bool {
    install_with(Options::default())
}

pub fn install_with(options: Options) -> bool {
    fairlock::testing::transform_scripts(move |name, body| {
        journaled(name, &(options.mutate)(name, body), options.most)
    });
    // Made now: whoever asks is told what is sent, not what was meant.
    fairlock::testing::scripts()
        .iter()
        .filter(|(name, _)| Script::of_name(name).is_some())
        .all(|(_, texts)| texts.iter().all(|text| text.contains("journal_body")))
}

/// A script's text with its journal.
pub fn journaled(name: &str, body: &str, most: Option<u64>) -> String {
    if Script::of_name(name).is_none() {
        return body.to_owned();
    }
    let once = |text: &str, find: &str, replacement: &str| {
        assert_eq!(text.matches(find).count(), 1, "{name}: {find}");
        text.replace(find, replacement)
    };
    // The moment of the entry is the script's own, and asked for once.
    let body = once(body, "call('TIME')", "journal_time()");
    let note = "local function note(what, request, number)\n";
    let body = once(&body, note, &format!("{note}{NOTE}"));
    // What happened is noted also if nobody listens.
    let body = body.replace("if events and ended > 0 then note(", "if ended > 0 then note(");
    let heard = "if events then note(";
    assert!(body.contains(heard), "{name}: {heard}");
    let body = body.replace(heard, "do note(");
    // A run of readers enters without being noted one by one.
    let crowd = "    last = i\n  end\n  reads, waiting";
    let noted = format!("    note('granted', request, int(token))\n{crowd}");
    let body = once(&body, crowd, &noted);
    // Nor is a lease that a script cuts an event.
    let body = once(&body, "cuts = cuts + call(", "cuts = cuts + journal_cut(request, call(");
    let body = once(&body, "'CH', int(at), request) end", "'CH', int(at), request)) end");
    let most = most.map_or_else(String::new, |most| format!("'MAXLEN', '~', '{most}', "));
    let tail = TAIL.replace("$NAME", name).replace("$MOST", &most);
    format!("{HEAD}{body}\nend\n{tail}")
}

const HEAD: &str = "local journal_notes, journal_now = {}, nil
local function journal_cut(request, shortened)
  if shortened > 0 then journal_notes[#journal_notes + 1] = 'cut ' .. request .. ' 0' end
  return shortened
end
local function journal_time()
  journal_now = journal_now or redis.call('TIME')
  return journal_now
end
local function journal_body()
";

const NOTE: &str = "  journal_notes[#journal_notes + 1] = what .. ' ' .. request .. ' ' .. (number or '0')\n";

/// An entry's id is its number and its time: a number that is missing is a gap, and an entry whose id has changed is of
/// another journal.
const TAIL: &str = "local journal_ok, journal_reply = pcall(journal_body)
do
  local now, reply = journal_time(), {}
  if journal_ok then
    local numbers = type(journal_reply) == 'number' and { journal_reply } or journal_reply
    if numbers.err then return journal_reply end   -- it did nothing
    for i, value in ipairs(numbers) do reply[i] = string.format('%d', value) end
  end
  local number = redis.pcall('INCR', KEYS[1] .. ':journal:n')
  if type(number) == 'number' then
    local id = string.format('%d-%d', number, now[1] * 1000000 + now[2])
    redis.pcall('XADD', KEYS[1] .. ':journal', $MOSTid, journal_ok and '$NAME' or 'failed', table.concat(ARGV, ' '),
      table.concat(reply, ' '), table.concat(journal_notes, '\\n'))
  end
end
if not journal_ok then error(journal_reply, 0) end
return journal_reply
";

/// Deletes a field of a lock's state, and says so in its journal. Not the policy, by which layout 1 refuses the lock.
/// False: there was none.
pub async fn delete_field(redis: &mut MultiplexedConnection, lock_key: &str, which: u64) -> Result<bool, String> {
    const DELETE: &str = "local fields, left = redis.call('HKEYS', KEYS[1]), {}
for _, field in ipairs(fields) do if field ~= 'policy' then left[#left + 1] = field end end
if not left[1] then return '' end
table.sort(left)
local field = left[ARGV[1] % #left + 1]
redis.call('HDEL', KEYS[1], field)
local now = redis.call('TIME')
local id = string.format('%d-%d', redis.call('INCR', KEYS[1] .. ':journal:n'), now[1] * 1000000 + now[2])
return redis.call('XADD', KEYS[1] .. ':journal', id, 'deleted', field, '', '')";
    let mut call = redis::cmd("EVAL");
    call.arg(DELETE).arg(1).arg(lock_key).arg(which % 1_000_000);
    let id: String = call.query_async(redis).await.map_err(|error| error.to_string())?;
    Ok(!id.is_empty())
}

/// Deletes keys of a lock, as an operator might, and says so in its journal. False: there were none.
pub async fn delete(redis: &mut MultiplexedConnection, lock_key: &str, keys: &[String]) -> Result<bool, String> {
    const DELETE: &str = "local deleted = 0
for i = 2, #KEYS do deleted = deleted + redis.call('DEL', KEYS[i]) end
if deleted == 0 then return '' end
local now = redis.call('TIME')
local id = string.format('%d-%d', redis.call('INCR', KEYS[1] .. ':journal:n'), now[1] * 1000000 + now[2])
return redis.call('XADD', KEYS[1] .. ':journal', id, 'deleted', table.concat(KEYS, ' ', 2), '', '')";
    let mut call = redis::cmd("EVAL");
    call.arg(DELETE).arg(keys.len() + 1).arg(lock_key).arg(keys);
    let id: String = call.query_async(redis).await.map_err(|error| error.to_string())?;
    Ok(!id.is_empty())
}

/// Drops the entries before this one, which have been read.
pub async fn forget(redis: &mut MultiplexedConnection, lock_key: &str, after: &str) -> Result<(), String> {
    if after.is_empty() {
        return Ok(());
    }
    let mut call = redis::cmd("XTRIM");
    call.arg(format!("{lock_key}:journal")).arg("MINID").arg("~").arg(after);
    let _trimmed: u64 = call.query_async(redis).await.map_err(|error| error.to_string())?;
    Ok(())
}

/// A script, as a transaction is refused when memory is exhausted.
const READ: &str = "return {
  redis.call('GET', KEYS[2]), redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1),
  redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2]),
}";

/// The next entries, at most a thousand; none: there are no more yet. `after` is the id of the last one read, at first
/// empty. An error begins with [`LOST`], [`DAMAGED`] or [`GAP`], or it is the server's; after it one may read on.
pub async fn read(
    redis: &mut MultiplexedConnection,
    lock_key: &str,
    after: &mut String,
) -> Result<Vec<Record>, String> {
    let journal = format!("{lock_key}:journal");
    let from = if after.is_empty() { "-" } else { after.as_str() };
    let mut call = redis::cmd("EVAL");
    call.arg(READ)
        .arg(2)
        .arg(&journal)
        .arg(format!("{journal}:n"))
        .arg(from)
        .arg(PAGE);
    let reply = call.query_async(redis).await.map_err(|error| error.to_string())?;
    let (number, oldest, page): (Option<u64>, Vec<Entry>, Vec<Entry>) = reply;

    // What has been read before comes again, to see that it is the same journal.
    let (read, mut next) = match id(after)? {
        None => (0, 1),
        Some((last, at_us)) => {
            if page.first().is_none_or(|(first, _)| first != after) {
                return Err(broken(number, oldest.first(), last, at_us, page.first(), after));
            }
            (1, last + 1)
        }
    };
    let mut records = Vec::with_capacity(page.len());
    for (name, fields) in &page[read..] {
        let (here, at_us) = id(name)?.ok_or("an entry without id")?;
        if here != next {
            if records.is_empty() {
                let gap = format!("{GAP}{} entries of {journal} before {name}", here - next);
                *after = name.clone();
                return Err(gap);
            }
            return Ok(records);
        }
        let parsed = entry(lock_key, at_us, fields);
        if parsed.is_err() && !records.is_empty() {
            return Ok(records);
        }
        after.clone_from(name);
        records.push(parsed?);
        next += 1;
    }
    // An entry could not be written although its number was taken, and no other has come since.
    if records.is_empty() && number.is_some_and(|number| number >= next) {
        return Err(format!("{GAP}{journal} has no entry {next}"));
    }
    Ok(records)
}

type Entry = (String, Vec<String>);

/// Number and time.
fn id(text: &str) -> Result<Option<(u64, u64)>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let parts = text.split_once('-').map(|(number, at)| (number.parse(), at.parse()));
    match parts {
        Some((Ok(number), Ok(at_us))) => Ok(Some((number, at_us))),
        _ => Err(format!("{text:?} is no entry of a journal")),
    }
}

/// Why the last entry that was read is not there any more.
fn broken(
    number: Option<u64>,
    oldest: Option<&Entry>,
    last: u64,
    at_us: u64,
    found: Option<&Entry>,
    after: &mut String,
) -> String {
    let oldest_id = oldest.and_then(|(oldest, _)| id(oldest).ok().flatten());
    match oldest_id {
        Some((oldest, oldest_us)) if oldest > last || (oldest > 1 && oldest_us > at_us) => {
            let gap = format!("{GAP}entry {after} was dropped before it was read on; the oldest is {oldest}");
            *after = found.map_or_else(String::new, |(found, _)| found.clone());
            gap
        }
        Some((_, oldest_us)) if oldest_us <= at_us => {
            let lost = format!("{LOST}entry {after}, and perhaps earlier ones; the journal has {number:?}");
            after.clear();
            lost
        }
        _ => {
            let lost = format!("{LOST}everything up to entry {after}");
            after.clear();
            lost
        }
    }
}

/// An entry is one pair: who and with what, then what came of it.
fn entry(lock: &str, at_us: u64, fields: &[String]) -> Result<Record, String> {
    let [name, args, reply, notes] = fields else {
        return Err(format!("{GAP}an entry with {} fields", fields.len()));
    };
    let args = match args.as_str() {
        "" => Vec::new(),
        args => args.split(' ').map(str::to_owned).collect(),
    };
    match name.as_str() {
        "failed" => {
            return Err(format!(
                "{GAP}a script failed half-way: {args:?}; it had done {notes:?}"
            ));
        }
        "deleted" => return Err(format!("{DAMAGED}{args:?} deleted at {at_us}")),
        _ => {}
    }
    let bad = || format!("{GAP}not an entry of a journal: {fields:?}");
    let script = Script::of_name(name).ok_or_else(bad)?;
    let number = |word: &str| word.parse().map_err(|_| bad());
    Ok(Record {
        lock: lock.to_owned(),
        at_us,
        args: match script {
            Script::Acquire => acquire::said(&args.iter().map(String::as_str).collect::<Vec<_>>()).ok_or_else(bad)?,
            _ => args.into_iter().skip(1).collect(),
        },
        script,
        reply: told(script, reply.split(' ').map(number).collect::<Result<_, _>>()?),
        notes: notes
            .lines()
            .map(|line| note(line).ok_or_else(bad))
            .collect::<Result<_, _>>()?,
    })
}

fn note(line: &str) -> Option<Note> {
    let mut words = line.split(' ');
    Some(Note {
        what: What::of_name(words.next()?)?,
        request: words.next()?.to_owned(),
        token: words.next()?.parse().ok()?,
    })
}
