/* The names, in the order of the choices: one of them is the transport itself. */
#include "comm/algo/algo.h"

enum { NAIVE, SERVER, TREE, RING, HALVING, LIBRARY, N_CHOICES };

const char *const comm_algorithm_names[] = {
    [NAIVE] = "naive",     [SERVER] = "server",   [TREE] = "tree",    [RING] = "ring",
    [HALVING] = "halving", [LIBRARY] = "library", [N_CHOICES] = NULL,
};

const CommAlgorithm *comm_algorithm(int choice) {
    static const CommAlgorithm *const ALGORITHMS[N_CHOICES] = {
        [NAIVE] = &ALGORITHM_NAIVE, [SERVER] = &ALGORITHM_SERVER,   [TREE] = &ALGORITHM_TREE,
        [RING] = &ALGORITHM_RING,   [HALVING] = &ALGORITHM_HALVING, [LIBRARY] = NULL,
    };
    return choice >= 0 && choice < N_CHOICES ? ALGORITHMS[choice] : NULL;
}
