//! The patterns of the suite: its README says what fits them.

use serde_json::Value;
use std::collections::BTreeMap;

/// Whether a reply fits a pattern; takes note of the numbers that it names.
pub fn matches(pattern: &Value, reply: &redis::Value, numbers: &mut BTreeMap<String, i64>) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{reply:?} is not {pattern}{why}"));
    let text = redis::from_redis_value::<String>(reply.clone()).ok();
    let fits = match (pattern, reply) {
        (Value::Array(patterns), redis::Value::Array(replies)) => {
            if patterns.len() != replies.len() {
                return wrong(", it has another length");
            }
            for (pattern, reply) in patterns.iter().zip(replies) {
                matches(pattern, reply, numbers)?;
            }
            true
        }
        (Value::Number(number), redis::Value::Int(reply)) => number.as_i64() == Some(*reply),
        (Value::String(expected), redis::Value::BulkString(_) | redis::Value::SimpleString(_)) => {
            text.as_deref() == Some(expected)
        }
        (Value::Object(object), _) => {
            let Some(number) = text.and_then(|text| text.parse::<i64>().ok()) else {
                return wrong(", and no number");
            };
            let named = |name: &Value| numbers[name.as_str().expect("a name")];
            let fits = object.iter().all(|(condition, value)| match condition.as_str() {
                "from" => number >= value.as_i64().expect("a number"),
                "to" => number <= value.as_i64().expect("a number"),
                "above" => number > named(value),
                "is" => number == named(value),
                "minus" => number == -named(value),
                "multiple" => number % value.as_i64().expect("a number") == 0,
                "as" => true,
                other => panic!("no such condition: {other}"),
            });
            if let Some(name) = object.get("as") {
                numbers.insert(name.as_str().expect("a name").to_owned(), number);
            }
            fits
        }
        _ => false,
    };
    if fits {
        Ok(())
    } else {
        wrong(&format!(", with {numbers:?}"))
    }
}
