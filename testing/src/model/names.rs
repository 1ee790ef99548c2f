//! What a request's name says: mode, client, number, and whose request it is.

/// Whether it asks to write.
pub fn writes(request: &str) -> bool {
    request.starts_with('w')
}

/// The owner that the user named, if any: what follows the second colon, unless that is a weight.
pub fn named_owner(request: &str) -> Option<&str> {
    let (_, rest) = request.split_once(':')?;
    let (_, owner) = rest.split_once(':')?;
    (!owner.starts_with('*')).then_some(owner)
}

pub fn owner_of(request: &str) -> &str {
    named_owner(request).unwrap_or_else(|| request.get(1..).unwrap_or_default())
}

pub fn client_of(request: &str) -> &str {
    let name = request.get(1..).unwrap_or_default();
    name.split_once(':').map_or(name, |(client, _)| client)
}

/// What an owner that reads takes of a bounded lock's limit. Its first request may name that instead of an owner.
pub fn weight_of(owner: &str) -> u64 {
    let weight = owner.rsplit_once(":*").and_then(|(_, weight)| weight.parse().ok());
    weight.unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_part_of_the_name_of_the_requests_own_owner() {
        for (request, named, owner, weight) in [
            ("r1f:20", None, "1f:20", 1),
            ("r1f:20:*4", None, "1f:20:*4", 4),
            ("r1f:20:a", Some("a"), "a", 1),
            ("w1f:21:1f:20:*4", Some("1f:20:*4"), "1f:20:*4", 4),
        ] {
            assert_eq!((named_owner(request), owner_of(request)), (named, owner), "{request}");
            assert_eq!(weight_of(owner_of(request)), weight, "{request}");
            assert_eq!(client_of(request), "1f");
        }
    }
}
