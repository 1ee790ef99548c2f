//! What the pages say of the sources must be true: design.md is drawn from the tree.
