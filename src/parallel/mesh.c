/* Coordinates are the digits of the rank in a number system with one base an axis; groups are ranks that
 * differ in one digit. */
#include "parallel/mesh.h"

#include "base/text/plain.h"
#include "comm/comm_self.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name, *meaning;
} axes[N_AXES] = {
    [AXIS_PP] = {"pp", "pipeline: layers"},
    [AXIS_DP] = {"dp", "data: sequences"},
    [AXIS_CP] = {"cp", "context: positions"},
    [AXIS_EP] = {"ep", "experts"},
    [AXIS_TP] = {"tp", "tensors: heads and channels"},
};

const char *axis_name(Axis axis) {
    return axes[axis].name;
}

int mesh_n_ranks(const MeshShape *shape) {
    int n_ranks = 1;
    for (int axis = 0; axis < N_AXES; axis++) n_ranks *= shape->size[axis];
    return n_ranks;
}

void mesh_coordinates(const MeshShape *shape, int rank, int *coordinate) {
    for (int axis = N_AXES - 1; axis >= 0; axis--) {
        coordinate[axis] = rank % shape->size[axis];
        rank /= shape->size[axis];
    }
}

int mesh_rank(const MeshShape *shape, const int *coordinate) {
    int rank = 0;
    for (int axis = 0; axis < N_AXES; axis++) rank = rank * shape->size[axis] + coordinate[axis];
    return rank;
}

/* "--tp 2 --dp 3": the sizes that were given. */
static const char *given_sizes(const int64_t *sizes, char *text, size_t n_bytes) {
    size_t n = 0;
    text[0] = '\0';
    for (int axis = 0; axis < N_AXES; axis++) {
        if (sizes[axis] == (axis == AXIS_DP ? 0 : 1)) continue;
        int length = snprintf(text + n, n_bytes - n, "%s--%s %lld", n ? " " : "", axes[axis].name,
                              (long long)sizes[axis]);
        if (length < 0 || (size_t)length >= n_bytes - n) break;
        n += (size_t)length;
    }
    return text;
}

/* The only axis that was given a size; -1: there are several. */
static int only_axis(const int64_t *sizes) {
    int found = -1;
    for (int axis = 0; axis < N_AXES; axis++) {
        if (sizes[axis] == (axis == AXIS_DP ? 0 : 1)) continue;
        if (found >= 0) return -1;
        found = axis;
    }
    return found;
}

/* "choose --pp 2 or --pp 4": the sizes next to this one, up to `most`, that divide the ranks. */
static const char *nearest_sizes(const char *name, int64_t size, int64_t most, int n_ranks, char *text,
                                 size_t n_bytes) {
    if (most > n_ranks) most = n_ranks;
    int64_t below = size < most ? size : most, above = size;
    while (n_ranks % below) below--;
    while (above <= most && n_ranks % above) above++;
    int n = snprintf(text, n_bytes, "choose --%s %lld", name, (long long)below);
    if (above <= most && n > 0)
        snprintf(text + n, n_bytes - (size_t)n, " or --%s %lld", name, (long long)above);
    return text;
}

/* Of several axes that were given sizes: those nearest to them, by ratio, that go into the ranks. */
typedef struct {
    const int64_t *wanted, *most;
    int64_t size[N_AXES], best[N_AXES];
    double distance; /* of the best; below 0: there is none yet */
} Nearest;

static void search_sizes(Nearest *nearest, int axis, int n_ranks, double distance) {
    if (nearest->distance >= 0.0 && distance >= nearest->distance) return;
    if (axis == N_AXES) {
        if (nearest->wanted[AXIS_DP] && n_ranks > 1) return; /* dp does not take what is left */
        nearest->distance = distance;
        memcpy(nearest->best, nearest->size, sizeof nearest->best);
        return;
    }
    int64_t wanted = nearest->wanted[axis];
    nearest->size[axis] = wanted;
    if (wanted == (axis == AXIS_DP ? 0 : 1)) {
        search_sizes(nearest, axis + 1, n_ranks, distance);
        return;
    }
    for (int size = 1; size <= n_ranks && size <= nearest->most[axis]; size++) {
        if (n_ranks % size) continue;
        nearest->size[axis] = size;
        search_sizes(nearest, axis + 1, n_ranks / size, distance + fabs(log((double)size / (double)wanted)));
    }
}

/* "choose --pp 2 --tp 2"; "" where not even 1 along each of them goes. */
static const char *nearest_meshes(const int64_t *sizes, const int64_t *most, int n_ranks, char *text,
                                  size_t n_bytes) {
    char given[160] = "";
    Nearest nearest = {.wanted = sizes, .most = most, .distance = -1.0};
    search_sizes(&nearest, 0, n_ranks, 0.0);
    if (nearest.distance >= 0.0)
        for (int axis = 0; axis < N_AXES; axis++) {
            size_t n = strlen(given);
            if (sizes[axis] != (axis == AXIS_DP ? 0 : 1))
                snprintf(given + n, sizeof given - n, " --%s %lld", axes[axis].name,
                         (long long)nearest.best[axis]);
        }
    snprintf(text, n_bytes, "%s%s", *given ? "choose" : "", given);
    return text;
}

/* The first axis whose size is more than can be; -1: none. */
static int axis_beyond(const int64_t *sizes, const int64_t *most) {
    for (int axis = 0; axis < N_AXES; axis++)
        if (sizes[axis] > most[axis]) return axis;
    return -1;
}

/* Sizes do not go into the ranks: what does. No number of ranks does for a size that cannot be at all. */
static Status refuse_sizes(const int64_t *sizes, const int64_t *limits, int64_t product, int n_ranks,
                           Error *error) {
    int64_t most[N_AXES];
    for (int i = 0; i < N_AXES; i++) most[i] = limits[i] ? limits[i] : INT64_MAX;
    char given[160], start[100], nearest[200] = "";
    int axis = only_axis(sizes), beyond = axis_beyond(sizes, most);
    bool has_data = sizes[AXIS_DP] > 0;
    int64_t others = has_data ? product / sizes[AXIS_DP] : product, below = n_ranks / product * product;
    given_sizes(sizes, given, sizeof given);
    if (beyond >= 0)
        snprintf(start, sizeof start, "lower --%s to %lld or less", axes[beyond].name,
                 (long long)most[beyond]);
    else if (has_data || !below)
        snprintf(start, sizeof start, "start %lld rank%s (mpirun -n)", (long long)product,
                 product == 1 ? "" : "s");
    else
        snprintf(start, sizeof start, "start %lld or %lld ranks (mpirun -n)", (long long)below,
                 (long long)below + (long long)product);
    const char *plural = n_ranks == 1 ? "" : "s";
    if (axis < 0) nearest_meshes(sizes, most, n_ranks, nearest, sizeof nearest);
    else if (!has_data)
        nearest_sizes(axes[axis].name, sizes[axis], most[axis], n_ranks, nearest, sizeof nearest);
    bool is_one = beyond >= 0 && *nearest; /* what is nearest is low enough */
    const char *also = *nearest && !is_one ? ", or " : "";
    if (is_one) start[0] = '\0';
    if (has_data)
        return error_user(
            error, "%s does not multiply to the %d rank%s of this run; %s%s%s%s", given, n_ranks, plural,
            n_ranks % others == 0 && beyond < 0 ? "leave out --dp, which then takes what is left, or " : "",
            start, also, nearest);
    return error_user(error, "%s does not divide the %d rank%s of this run; %s%s%s", given, n_ranks, plural,
                      start, also, nearest);
}

Status mesh_shape(const int64_t *sizes, int n_ranks, MeshShape *shape, Error *error) {
    return mesh_shape_within(sizes, (const int64_t[N_AXES]){0}, n_ranks, shape, error);
}

Status mesh_shape_within(const int64_t *sizes, const int64_t *most, int n_ranks, MeshShape *shape,
                         Error *error) {
    int64_t product = 1;
    for (int axis = 0; axis < N_AXES; axis++) {
        if (axis == AXIS_DP && !sizes[axis]) continue;
        if (__builtin_mul_overflow(product, sizes[axis], &product)) product = INT64_MAX / 2;
    }
    bool fits = sizes[AXIS_DP] ? product == n_ranks : product <= n_ranks && n_ranks % product == 0;
    if (!fits) return refuse_sizes(sizes, most, product, n_ranks, error);
    for (int axis = 0; axis < N_AXES; axis++) shape->size[axis] = (int)sizes[axis];
    if (!sizes[AXIS_DP]) shape->size[AXIS_DP] = n_ranks / (int)product;
    return STATUS_OK;
}

Status mesh_shape_planned(const int64_t *sizes, int most, MeshShape *shape, Error *error) {
    int64_t n_ranks = 1;
    char given[160];
    for (int axis = 0; axis < N_AXES; axis++)
        if (sizes[axis] && __builtin_mul_overflow(n_ranks, sizes[axis], &n_ranks)) n_ranks = INT64_MAX / 2;
    if (n_ranks <= most) return mesh_shape(sizes, (int)n_ranks, shape, error);
    return error_user(
        error, "%s makes a mesh of %s%lld ranks, and one of up to %d can be planned; choose smaller sizes",
        given_sizes(sizes, given, sizeof given), n_ranks == INT64_MAX / 2 ? "more than " : "",
        (long long)n_ranks, most);
}

/* Ranks that differ along these axes alone, in the order of the mesh. The group is named by its first
 * rank. */
static Status open_group(Mesh *mesh, const Axis *along, int n_axes, Comm *comm, Error *error) {
    int origin[N_AXES], key = 0;
    memcpy(origin, mesh->coordinate, sizeof origin);
    for (int i = 0; i < n_axes; i++) {
        key = key * mesh->shape.size[along[i]] + mesh->coordinate[along[i]];
        origin[along[i]] = 0;
    }
    return comm_split(mesh->world, mesh_rank(&mesh->shape, origin), key, comm, error);
}

static Status open_sums(Mesh *mesh, Error *error) {
    static const Axis along[] = {AXIS_DP, AXIS_CP, AXIS_EP};
    bool has_contexts = mesh->shape.size[AXIS_CP] > 1, has_experts = mesh->shape.size[AXIS_EP] > 1;
    if (has_contexts || has_experts) TRY(open_group(mesh, along, 3, &mesh->sums, error));
    if (has_contexts && has_experts) TRY(open_group(mesh, along, 2, &mesh->expert_sums, error));
    return STATUS_OK;
}

Status mesh_open(Mesh *mesh, const MeshShape *shape, Comm *world, Error *error) {
    *mesh = (Mesh){.shape = *shape, .world = world};
    if (mesh_n_ranks(shape) != world->size) {
        return error_failed(error, "a mesh of %d ranks was opened on %d", mesh_n_ranks(shape), world->size);
    }
    mesh_coordinates(shape, world->rank, mesh->coordinate);
    for (int axis = 0; axis < N_AXES; axis++) {
        if (shape->size[axis] == 1) {
            mesh->axis[axis] = comm_self();
            continue;
        }
        int origin[N_AXES]; /* the group is named by its rank with coordinate 0 */
        memcpy(origin, mesh->coordinate, sizeof origin);
        origin[axis] = 0;
        TRY(comm_split(world, mesh_rank(shape, origin), mesh->coordinate[axis], &mesh->axis[axis], error));
    }
    return open_sums(mesh, error);
}

Status mesh_open_heads(Mesh *mesh, int group, Error *error) {
    return comm_split(&mesh->axis[AXIS_TP], group, mesh->coordinate[AXIS_TP], &mesh->heads, error);
}

Status mesh_open_ends(Mesh *mesh, Error *error) {
    int n_stages = mesh->shape.size[AXIS_PP], stage = mesh->coordinate[AXIS_PP];
    if (n_stages == 1) return STATUS_OK;
    bool is_end = stage == 0 || stage == n_stages - 1;
    return comm_split(&mesh->axis[AXIS_PP], is_end ? 0 : -1, stage, &mesh->ends, error);
}

void mesh_close(Mesh *mesh) {
    comm_close(&mesh->hosts.across);
    comm_close(&mesh->hosts.inside);
    comm_close(&mesh->expert_sums);
    comm_close(&mesh->sums);
    comm_close(&mesh->ends);
    comm_close(&mesh->heads);
    for (int axis = 0; axis < N_AXES; axis++) comm_close(&mesh->axis[axis]);
}

static void print_groups(const MeshShape *shape, int axis, FILE *stream) {
    fprintf(stream, "%s groups (%s):", axes[axis].name, axes[axis].meaning);
    for (int rank = 0; rank < mesh_n_ranks(shape); rank++) {
        int coordinate[N_AXES];
        mesh_coordinates(shape, rank, coordinate);
        if (coordinate[axis]) continue; /* a group is printed where its first rank comes by */
        for (int i = 0; i < shape->size[axis]; i++) {
            coordinate[axis] = i;
            fprintf(stream, "%s%d", i ? "," : " {", mesh_rank(shape, coordinate));
        }
        fputc('}', stream);
    }
    fputc('\n', stream);
}

void mesh_print(const MeshShape *shape, const char *const *hosts, FILE *stream) {
    fprintf(stream, "mesh of %d ranks:", mesh_n_ranks(shape));
    for (int axis = 0; axis < N_AXES; axis++)
        fprintf(stream, "%s %s %d", axis ? "," : "", axes[axis].name, shape->size[axis]);
    fprintf(stream, "\n%6s", "rank");
    for (int axis = 0; axis < N_AXES; axis++) fprintf(stream, " %5s", axes[axis].name);
    fprintf(stream, "%s\n", hosts ? "  host" : "");
    for (int rank = 0; rank < mesh_n_ranks(shape); rank++) {
        int coordinate[N_AXES];
        mesh_coordinates(shape, rank, coordinate);
        fprintf(stream, "%6d", rank);
        for (int axis = 0; axis < N_AXES; axis++) fprintf(stream, " %5d", coordinate[axis]);
        fprintf(stream, "%s%s\n", hosts ? "  " : "", hosts ? plain(hosts[rank]).text : "");
    }
    for (int axis = 0; axis < N_AXES; axis++) {
        if (shape->size[axis] > 1) print_groups(shape, axis, stream);
    }
}
