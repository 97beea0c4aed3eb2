//! The order in which a matmul's blocks visit the tiles of the result.
