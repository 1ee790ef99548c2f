//! What the pages promise: their links, their examples, their figures, their programs.

mod examples;
mod pages;
mod programs;
