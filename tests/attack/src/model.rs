//! What each script must answer: a reference model.
