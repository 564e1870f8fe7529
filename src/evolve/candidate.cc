#include "evolve/candidate.h"
