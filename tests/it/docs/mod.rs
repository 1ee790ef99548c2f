//! What the pages promise: their links, their examples, their figures.

mod examples;
mod pages;
